"""Numbers that the papers print, with their "±": every table, and accuracies in the text."""

from collections.abc import Mapping

Printed = tuple[float, float | None]
"""A number and its printed ±, ``None`` where there is none."""

_RELUS = ("relu1", "relu2", "relu3", "relu4")  # the papers' layers 3, 6, 10, 14
COLUMNS = ("DNN", "DGN(x, x)", "DGN(x, 1)", "DLGN(x, x)", "DLGN(x, 1)")


def _row(names: tuple[str, ...], numbers: str) -> dict[str, Printed]:
    cells = [cell.split("±") for cell in numbers.split()]
    return {name: (float(c[0]), float(c[1]) if len(c) > 1 else None) for name, c in zip(names, cells, strict=True)}


TABLE_2 = {  # paper 1, v2
    "g_relu_procrustes": _row(_RELUS, "0.6208±0.008 0.5106±0.005 0.4432±0.004 0.4899±0.002"),
    "orthogonal_procrustes": _row(_RELUS, "0.7724±0.028 0.5743±0.040 0.5087±0.016 0.5825±0.019"),
}
V1_FIG_5 = {
    "g_relu_procrustes": _row(_RELUS, "0.645±0.017 0.521±0.008 0.447±0.003 0.483±0.002"),
    "orthogonal_procrustes": _row(_RELUS, "0.810±0.006 0.662±0.004 0.530±0.003 0.601±0.001"),
}
TABLE_4 = {
    "g_relu_procrustes": _row(_RELUS, "0.8176±0.007 0.7602±0.005 0.5691±0.005 0.4971±0.003"),
    "orthogonal_procrustes": _row(_RELUS, "0.8460±0.008 0.6735±0.005 0.5409±0.003 0.6050±0.002"),
}
TABLE_3 = _row(  # v1 Table 1; in our copy of v2 Table 3 the numbers are lost
    tuple(f"slope {s}" for s in ("0.0001", "0.001", "0.01", "0.1", "0.5", "0.9", "1")),
    "89.3±0.2 89.4±0.2 89.2±0.2 89.4±0.1 86.6±0.1 73.0±0.2 41.8±0.1",
)
# v1, captions of Figs 1, 8 and 9 (v2 Figs 1, 6 and 7)
ZOO_ACCURACY: Mapping[str, Printed] = {"myrtle_cnn": (0.905, 0.002), "resnet20": (0.896, 0.012),
                                       "resnet18": (0.910, 0.016)}  # fmt: skip

TABLE_I = {  # paper 2, percent; 5 runs
    "cifar10": _row(COLUMNS, "80.5±0.4 77.4±0.3 77.5±0.2 75.4±0.3 75.4±0.2"),
    "cifar100": _row(COLUMNS, "51.8±0.4 47.4±0.2 47.3±0.3 47.4±0.1 48.0±0.2"),
}
TABLE_I_PERMUTED = {  # over the 23 permutations
    "cifar10": _row(COLUMNS[1:], "77.3±0.5 77.9±0.6 75.9±0.5 76.0±0.5"),
    "cifar100": _row(COLUMNS[1:], "48.4±0.8 49.2±0.9 47.5±1.0 48.4±0.9"),
}
TABLE_II = {
    "cifar10": {
        "vgg16": _row(COLUMNS, "93.6±0.2 93.0±0.1 93.0±0.1 87.0±0.1 87.0±0.2"),
        "resnet110": _row(COLUMNS, "94.0±0.2 93.3±0.2 93.2±0.1 87.9±0.2 87.8±0.1"),
    },
    "cifar100": {
        "vgg16": _row(COLUMNS, "73.4±0.3 70.3±0.1 70.5±0.2 61.5±0.2 61.5±0.1"),
        "resnet110": _row(COLUMNS, "72.7±0.2 70.8±0.2 70.8±0.4 62.3±0.2 62.7±0.3"),
    },
}
FIG_2_CHAIN = _row(("FR gates", "CNTK-GAP", "FL gates", "network"), "67.09 77.43 79.68 80.32")
