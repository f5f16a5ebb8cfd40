"""The papers' architectures as plain modules, and a registry that builds them from a line of text."""

from .convnets import (
    Ensemble,
    PlainCNN,
    c1gap,
    c1gap_ensemble,
    c4gap,
    cnn_gap,
    digits_cnn,
    mlp,
    myrtle_cnn,
    small_convnext,
    vgg16,
)
from .registry import (
    NETWORKS,
    Network,
    build,
    fit_to,
    gated,
    gated_spec,
    has_batch_norm,
    input_shape,
    parse,
    register,
)
from .resnets import cifar_resnet, paper_taps, removable, resnet18, resnet50, without
from .transformers import cct_6_3x1

__all__ = [
    # by name
    "build", "NETWORKS", "parse", "fit_to", "input_shape", "Network",
    # architectures
    "mlp", "digits_cnn", "myrtle_cnn", "cifar_resnet", "resnet18", "resnet50", "small_convnext", "cct_6_3x1", "c4gap",
    "c1gap", "c1gap_ensemble", "cnn_gap", "vgg16", "Ensemble", "PlainCNN",
    # their gated counterparts
    "gated", "gated_spec", "has_batch_norm",
    # the first paper's layer numbers; networks without a part
    "paper_taps", "removable", "without",
]  # fmt: skip

_CIFAR = (3, 32, 32)

register(
    Network("mlp", mlp, (1, 8, 8), "fully connected, for digits"),
    Network("digits_cnn", digits_cnn, (1, 8, 8), "small CNN, for digits"),
    Network("myrtle_cnn", myrtle_cnn, _CIFAR, "paper 1, v1 Fig. 23 (v2 Fig. 26)"),
    Network("resnet20", cifar_resnet, _CIFAR, "paper 1, v1 Fig. 24 (v2 Fig. 27)", {"depth": 20}),
    *(
        Network(f"resnet{depth}", cifar_resnet, _CIFAR, "He et al. 2016, section 4.2", {"depth": depth})
        for depth in (32, 44, 56, 110)
    ),
    Network("resnet18", resnet18, _CIFAR, "paper 1, v1 Fig. 25 (v2 Fig. 28)"),
    Network("resnet50", resnet50, (3, 224, 224), "He et al. 2016; paper 1, section 6 (residual_relu=false)"),
    Network("small_convnext", small_convnext, (3, 64, 64), "in the style of Liu et al. 2022, for dissection"),
    Network("cct_6_3x1", cct_6_3x1, _CIFAR, "paper 1, v2 D.4; Hassani et al. 2021"),
    Network("c4gap", c4gap, _CIFAR, "paper 2, Fig. 3 (width=512: Fig. 4)"),
    Network("c1gap", c1gap, _CIFAR, "paper 2, Fig. 4"),
    Network("c1gap_ensemble", c1gap_ensemble, _CIFAR, "paper 2, Fig. 4"),
    Network("cnn_gap", cnn_gap, _CIFAR, "paper 2, Fig. 2"),
    Network("vgg16", vgg16, _CIFAR, "paper 2, Figs 3, 7; Simonyan and Zisserman 2015"),
    Network("dgn", gated, _CIFAR, "paper 2, section 2.2.2; base=vgg16 and others", {"kind": "dgn"}),
    Network("dlgn", gated, _CIFAR, "paper 2, section 3; base=vgg16 and others", {"kind": "dlgn"}),
    Network("dlgn_sf", gated, _CIFAR, "paper 2, section 3.3; base=vgg16 and others", {"kind": "dlgn_sf"}),
)
