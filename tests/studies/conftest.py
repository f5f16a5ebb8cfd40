"""Studies are scripts beside the package: what finds them, and values with known answers."""

import itertools
import random
import sys
from pathlib import Path

import pytest

from intertwine.lab.experiments import Values

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

NETWORKS = tuple(map(str, range(8)))
PAIRS = tuple(itertools.combinations(NETWORKS, 2))


class Planted:
    """Rows of a table of values whose numbers are known, each with a little noise of its own."""

    def __init__(self):
        self.rows = []

    def networks(self, statistic, value, arm="", layer="", noise=1e-3, **columns):
        for k in NETWORKS:
            self._add(statistic, value, noise, arm=arm, layer=layer, network=k, **columns)
        return self

    def pairs(self, statistic, value, arm="", layer="", partner_layer="", noise=1e-3, **columns):
        for a, b in PAIRS:
            where = {"layer": layer, "partner_layer": partner_layer, "network": a, "partner": b}
            self._add(statistic, value, noise, arm=arm, **where, **columns)
        return self

    def trained(self, *arms, reached=0.9):
        """Networks that do more than the trivial baseline."""
        for arm in arms or ("networks",):
            self.networks("accuracy", reached, arm, images=10_000)
        self.rows.append({"statistic": "accuracy", "arm": "trivial baseline", "layer": "chance", "value": 0.1})
        return self

    def _add(self, statistic, value, noise, **columns):
        drawn = random.Random(f"{statistic} {sorted(columns.items())}").gauss(0, noise)
        self.rows.append({"statistic": statistic, "value": value + drawn, **columns})

    @property
    def values(self):
        return Values.of(self.rows, {"data": "cifar10"})

    @property
    def few(self):
        """Of one network, or one pair: what cannot be told."""
        kept = [r for r in self.rows if r.get("network", "0") == "0" and r.get("partner", "1") in ("", "1")]
        return Values.of(kept, {"data": "cifar10"})


@pytest.fixture
def planted():
    return Planted
