"""Rotation penalties of a Myrtle CNN, layer by layer (paper 1, v2 Fig. 4, v1 Fig. 7).

The figure is an image: what is checked are its claims in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ...data import load
from ...networks import build, fit_to
from ...runs import Job
from ...training import Recipe, load_checkpoint
from ..experiment import Experiment, Setting
from ..reproduction import Claim, Reproduction, Row, provenance
from ..zoos import recipe_at, zoo_for
from .rotation_penalty import rotation_penalty

__all__ = ["EXPERIMENTS", "FineTuned", "claims_of"]

KINDS = {"orthogonal": "rotation", "g_relu": "G_ReLU"}

# layer -> kind -> penalties of all runs
Penalties = dict[str, dict[str, list[float]]]


class FineTuned(Job):
    """One layer of one trained network, transformed, and the later layers trained again.

    Attributes:
        checkpoint: The network, without batch norm.
        layer: The convolution.
        kind: ``"orthogonal"`` or ``"g_relu"``.
        data: As ``lab.data.load`` takes it.
        examples: Training examples; all of them if ``None``.
        recipe: Of fine-tuning.
        seed: Of the element and of fine-tuning.
        device: Where.
    """

    gpus: ClassVar[float] = 0.5

    checkpoint: str
    layer: str
    kind: str
    data: str
    examples: int | None
    recipe: dict[str, Any]
    seed: int
    device: str = "auto"

    def run(self, files: Path) -> dict[str, float]:
        """Accuracies before, right after the transformation, and after fine-tuning."""
        data = load(self.data).first(self.examples)
        found = rotation_penalty(
            load_checkpoint(self.checkpoint), self.layer, self.kind, data, Recipe(**self.recipe),  # type: ignore[arg-type]
            seed=self.seed, device=self.device,
        )  # fmt: skip
        return {"before": found.before, "transformed": found.transformed, "after": found.after}


def claims_of(penalties: Penalties) -> list[Claim]:
    """What the paper says in words: elements of G_ReLU cost much less than rotations.

    Args:
        penalties: By layer and kind.
    """
    mean = lambda values: sum(values) / len(values)
    means = {layer: {kind: mean(values) for kind, values in by.items()} for layer, by in penalties.items()}
    shown = "; ".join(
        f"{layer}: {100 * by['orthogonal']:.1f} against {100 * by['g_relu']:.1f}" for layer, by in means.items()
    )
    both = {kind: mean([by[kind] for by in means.values()]) for kind in KINDS}
    return [
        Claim("rotations cost more than elements of G_ReLU at every layer",
              all(by["orthogonal"] > by["g_relu"] for by in means.values()), shown),
        Claim("and on average over layers", both["orthogonal"] > both["g_relu"],
              f"{100 * both['orthogonal']:.1f} points against {100 * both['g_relu']:.1f}"),
    ]  # fmt: skip


def _figure(setting: Setting) -> Reproduction:

    data = load(setting.data_spec)
    chosen = setting.by_scale("digits_cnn:bn=false,width=8", "myrtle_cnn:bn=false,base=16", "myrtle_cnn:bn=false")
    network = fit_to(chosen, data.shape, len(data.classes))
    # Layers before every ReLU but the last: behind that one there is only the classifier.
    *layers, _ = (name for name, m in build(network).named_modules() if isinstance(m, nn.Conv2d))
    runs = setting.by_scale(2, 3, 5)
    recipe = recipe_at(setting)
    paths = [str(member.path.resolve()) for member in zoo_for(setting, network, runs, recipe).members]
    jobs = [
        FineTuned(
            checkpoint=path, layer=layer, kind=kind, data=setting.data_spec, seed=setting.seed + i,
            examples=setting.by_scale(400, 10_000, None), device=setting.device,
            recipe=recipe.but(epochs=setting.by_scale(12, 5, recipe.epochs)).to_dict(),
        )
        for layer in layers
        for kind in KINDS
        for i, path in enumerate(paths)  # every network gets an element of its own
    ]  # fmt: skip
    values = iter(setting.run(jobs))
    rows, penalties = [], dict[str, dict[str, list[float]]]()
    before: list[float] = []
    for layer in layers:
        for kind, words in KINDS.items():
            found = [next(values) for _ in paths]
            lost = [v["before"] - v["after"] for v in found]
            penalties.setdefault(layer, {})[kind] = lost
            before += [v["before"] for v in found]
            at_once = [v["before"] - v["transformed"] for v in found]
            for group, points in ((words, lost), (f"{words}, before fine-tuning", at_once)):
                rows.append(Row(layer, sum(points) / runs, None, min(points), max(points), group=group))
    accuracy = sum(before) / len(before)
    rows.append(Row("baseline accuracy", accuracy, 0.81, min(before), max(before), group="networks"))
    notes = [
        f"Accuracy lost, 0.01 is a point; {runs} networks {network}, each with an element of its own; from the lowest "
        "to the highest in place of an interval.",
        "Without batch norm, which would undo scales by itself; scales lognormal with mean 1; rotations Haar.",
    ]
    return Reproduction(
        "fig4-rotation-penalty", "Rotation penalties of a Myrtle CNN", "v2 Fig. 4 (v1 Fig. 7)", setting.scale, rows,
        claims_of(penalties), setting.scale == "paper", notes,
        {**provenance(), "network": network, "runs": runs},
    )  # fmt: skip


EXPERIMENTS = (
    Experiment("fig4-rotation-penalty", "Rotation penalties of a Myrtle CNN", "v2 Fig. 4 (v1 Fig. 7)", _figure),
)
