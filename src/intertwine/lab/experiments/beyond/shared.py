"""The networks, layers and measures of the experiments on what the papers left open."""

from ...networks import build
from ...zoo import Zoo
from ..experiment import Setting
from ..zoos import trained_words, zoo_for

MEASURES = (
    "orthogonal_procrustes", "orthogonal_procrustes_centered", "g_relu_procrustes", "g_relu_procrustes_centered",
    "monomial_procrustes", "permutation_procrustes", "trivial_procrustes",
    "linear_cka", "g_relu_cka", "laplace_cka", "rbf_cka", "gates_cka", "channel_normalized_cka",
    "svcca", "pwcca", "mutual_knn", "rsa", "rsa_euclidean",
)  # fmt: skip
"""All measures that answer different questions: without biased estimators and further centred twins."""


def open_zoo(setting: Setting) -> Zoo:
    """Six Myrtle CNNs that other experiments share; ten at the paper's size, four CNNs on digits at smoke scale."""
    spec = setting.by_scale("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn")
    return zoo_for(setting, spec, setting.by_scale(4, 6, 10))


def relu_layers(zoo: Zoo) -> tuple[str, ...]:
    """Names of a zoo's ReLUs, in order."""
    return tuple(
        name
        for name, _ in build(zoo.architecture).named_modules()
        if name.rpartition(".")[2].startswith("relu")
    )  # fmt: skip


def networks_note(zoo: Zoo, rest: str) -> str:
    """What was compared, and that intervals leave out models."""
    return f"{trained_words(zoo)}, {rest}; intervals leave out networks."
