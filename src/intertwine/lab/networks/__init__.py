"""The papers' architectures as plain modules, and a registry that builds them from a line of text."""

from . import catalogue  # noqa: F401 - fills the registry
from .cct import cct_6_3x1
from .convnext import small_convnext
from .gap import Ensemble, c1gap, c1gap_ensemble, c4gap, cnn_gap
from .gated import gated, gated_spec, has_batch_norm
from .myrtle import myrtle_cnn
from .paper_taps import paper_taps
from .registry import Network, build, describe, fit_to, input_shape, names, parse
from .resnet import cifar_resnet, resnet18
from .resnet50 import resnet50
from .small import digits_cnn, mlp
from .vgg import vgg16

__all__ = [
    # by name
    "build", "names", "describe", "parse", "fit_to", "input_shape", "Network",
    # architectures
    "mlp", "digits_cnn", "myrtle_cnn", "cifar_resnet", "resnet18", "resnet50", "small_convnext", "cct_6_3x1", "c4gap",
    "c1gap", "c1gap_ensemble", "cnn_gap", "vgg16", "Ensemble",
    # their gated counterparts
    "gated", "gated_spec", "has_batch_norm",
    # the first paper's layer numbers
    "paper_taps",
]  # fmt: skip
