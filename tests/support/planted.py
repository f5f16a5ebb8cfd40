"""Planted values: rows like those of experiments, with known means and spreads."""

import math
import zlib

from intertwine.lab.experiments.plan import BASELINE
from intertwine.lab.experiments.values import Values


def spread_over(count, seed):
    """``count`` numbers with mean 0 and standard deviation 1, in an order that depends on the seed."""
    middle = (count - 1) / 2
    raw = [k - middle for k in range(count)]
    size = math.sqrt(sum(v**2 for v in raw) / max(count - 1, 1)) or 1.0
    turn = zlib.crc32(seed.encode())
    order = sorted(range(count), key=lambda k: zlib.crc32(f"{turn} {k}".encode()))
    return [raw[k] / size for k in order]


def rows_of(statistic, numbers, networks=8, own=False, **columns):
    """One row for each arm and network: ``{arm: (mean, standard deviation)}`` over exactly these networks.

    Args:
        statistic: Its name.
        numbers: By arm.
        networks: Number of networks of each arm.
        own: Whether each arm has its own networks rather than the same ones.
        columns: Columns that all rows share, such as ``layer``.
    """
    return [
        {"statistic": statistic, "arm": arm, "network": f"{arm} {k}" if own else f"{k}", "value": mean + sd * z,
         **columns}
        for arm, (mean, sd) in numbers.items()
        for k, z in enumerate(spread_over(networks, f"{arm} {statistic} {columns.get('layer', '')}"))
    ]  # fmt: skip


def floor_of(share):
    """The trivial baseline's rows."""
    return [{"statistic": "accuracy", "arm": BASELINE, "layer": name, "value": value, "images": 10_000}
            for name, value in (("logistic regression", share), ("chance", 0.1))]  # fmt: skip


def values_of(*parts, data="cifar10"):
    """Values of several lists of rows."""
    return Values.of((row for part in parts for row in part), {"data": data, "scale": "paper"})


def told(page, check=False):
    """Verdicts by text of the statement, without checks of the run: True, False or None."""
    return {c.text: c.held for c in page.claims if c.check == check}
