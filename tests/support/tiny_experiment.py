"""A tiny experiment of the tests' own: one small zoo, a job on each network and each pair, a statement."""

from pathlib import Path
from typing import Any, ClassVar

import torch

from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, PairJob, unordered_pairs
from intertwine.lab.runs import Job
from intertwine.lab.training import load_checkpoint

NETWORK = "mlp:widths=8"
behaviour: dict[str, Any] = {"penalty": 1.0, "count": 3, "rate": 3e-3, "seed": 0, "fails": ()}
"""What a change of code would change; ``fails`` names networks whose job breaks."""
ran: list[str] = []


class Norm(Job):
    """Norm of a network's weights plus a multiple of its loss on some images."""

    code: ClassVar[str] = ""

    checkpoint: str
    penalty: float

    def run(self, files: Path) -> list[dict[str, Any]]:
        """One row."""
        name = Path(self.checkpoint).stem
        if name in behaviour["fails"]:
            raise RuntimeError(f"no luck with {name}")
        ran.append(name)
        model = load_checkpoint(Path(self.checkpoint))
        x, y = load("digits").loader("test").batch(slice(0, 64))
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(x), y).item()
            size = sum(p.square().sum().item() for p in model.parameters())
        return [{"statistic": "cost", "value": size**0.5 + self.penalty * loss}]


class Distance(PairJob):
    """Distance of the weights of two networks."""

    def run(self, files: Path) -> list[dict[str, Any]]:
        """One row."""
        ran.append(self.label)
        a, b = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in self.networks())
        return [{"statistic": "distance", "value": measure(a, b)}]


def measure(a: torch.Tensor, b: torch.Tensor) -> float:
    """Euclidean."""
    return float((a - b).norm())


def plan(plan: Design) -> None:
    """Plan some networks, and jobs on each of them and on each pair."""
    s = plan.setting
    recipe = s.recipe(NETWORK, epochs=1, learning_rate=behaviour["rate"])
    zoo = plan.zoo("zoo", NETWORK, behaviour["count"], recipe, first=behaviour["seed"], examples=128)
    for member in zoo.members:
        plan.add(Norm(checkpoint=member.path.as_posix(), penalty=behaviour["penalty"]), "zoo", member.name)
    for pair in unordered_pairs(zoo):
        plan.pair(Distance, pair, "zoo")


def analyse(found: Findings) -> None:
    """Networks lie apart."""
    found.show("distance", {"zoo": found.values.sample("distance", "zoo")})
    found.state("networks lie apart", found.values.sample("distance", "zoo"), above=0.1)


TINY = Experiment("tiny", "A tiny one", "no paper", plan, analyse, digits=("smoke", "small", "paper"))
