"""The papers' tables as typed: sums and ratios that follow from the print."""

import pytest

from intertwine.lab.experiments import reproduction as p


def cells_of(table):
    if isinstance(table, tuple):
        return [table]
    return [cell for part in table.values() for cell in cells_of(part)]


def test_the_printed_tables_are_typed_as_the_papers_have_them():
    assert p.TABLE_2["orthogonal_procrustes"]["relu2"] == (0.5743, 0.040)
    assert p.ZOO_ACCURACY == {"myrtle_cnn": (0.905, 0.002), "resnet20": (0.896, 0.012), "resnet18": (0.910, 0.016)}
    sums = {  # numbers and spreads of each table, each times its place, added up from the papers: places count
        "TABLE_2": (20.4599, 0.682), "V1_FIG_5": (21.5, 0.133), "TABLE_4": (22.931, 0.151), "TABLE_3": (2056.9, 4.0),
        "TABLE_I": (3074.0, 12.9), "TABLE_I_PERMUTED": (2021.7, 28.8), "TABLE_II": (15403.3, 43.3),
        "FIG_2_CHAIN": (782.27, 0),
    }  # fmt: skip
    for name, (numbers, spreads) in sums.items():
        cells = list(enumerate(cells_of(getattr(p, name)), 1))
        assert sum(k * v for k, (v, _) in cells) == pytest.approx(numbers), name
        assert sum(k * (s or 0) for k, (_, s) in cells) == pytest.approx(spreads), name
    ratios = {  # the last column of Tables I and II, which follows from two others
        "TABLE_I": {"cifar10": 93.66, "cifar100": 92.66}, "TABLE_I_PERMUTED": {"cifar10": 94.40, "cifar100": 93.43},
    }  # fmt: skip
    for name, by in ratios.items():
        for data, share in by.items():
            dnn, found = p.TABLE_I[data]["DNN"][0], getattr(p, name)[data]["DLGN(x, 1)"][0]
            assert 100 * found / dnn == pytest.approx(share, abs=0.02)
    shares = {("cifar10", "vgg16"): 92.94, ("cifar10", "resnet110"): 93.40, ("cifar100", "vgg16"): 83.78,
              ("cifar100", "resnet110"): 86.24}  # fmt: skip
    for (data, network), share in shares.items():
        row = p.TABLE_II[data][network]
        assert 100 * row["DLGN(x, 1)"][0] / row["DNN"][0] == pytest.approx(share, abs=0.02)
