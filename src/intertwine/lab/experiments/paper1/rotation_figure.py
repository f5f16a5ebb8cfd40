"""Rotation penalties of a Myrtle CNN, layer by layer (paper 1, v2 Fig. 4, v1 Fig. 7).

The figure is an image: what is checked are the claims that the paper makes about it in words.
"""

from pathlib import Path
from typing import Any

from torch import nn

from ...data import load
from ...networks import build
from ...statistics import mean_of
from ...training import Recipe, load_checkpoint
from ...training.rotation_penalty import rotation_penalty
from ..experiment import Experiment, Findings
from ..plan import DataJob, Design, row

_KINDS = {"orthogonal": "rotation", "g_relu": "G_ReLU"}
_EXTRA = "rotation - G_ReLU"


class FineTuned(DataJob):
    """One layer of a trained network, transformed, with the later layers fine-tuned."""

    checkpoint: str  # The network, without batch norm
    layer: str  # The convolution
    kind: str  # ``"orthogonal"`` or ``"g_relu"``
    examples: int | None  # Training examples; all of them if ``None``
    recipe: dict[str, Any]  # Settings of fine-tuning
    seed: int  # Of the element and of fine-tuning

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows: accuracy lost after fine-tuning and right after the transformation, last loss of fine-tuning."""
        data = load(self.data).first(self.examples)
        found = rotation_penalty(
            load_checkpoint(self.checkpoint), self.layer, self.kind, data, Recipe(**self.recipe),  # type: ignore[arg-type]
            seed=self.seed, device=self.device,
        )  # fmt: skip
        of, images = {"layer": self.layer}, len(data.test)
        return [row("penalty", found.penalty, images=images, **of), row("loss of fine-tuning", found.loss, **of),
                row("penalty at once", found.before - found.transformed, images=images, **of)]  # fmt: skip


def _plan(plan: Design) -> None:
    s = plan.setting
    network = s.fitted("digits_cnn:bn=false,width=8", "myrtle_cnn:bn=false,base=16", "myrtle_cnn:bn=false")
    # Layers before every ReLU but the last: after that one there is only the classifier.
    *layers, _ = (name for name, m in build(network).named_modules() if isinstance(m, nn.Conv2d))
    # Without batch norm, networks need a lower learning rate.
    recipe = s.recipe(network, **s.by_scale({}, {"epochs": 8, "learning_rate": 4e-3}, {}))
    zoo = plan.zoo(network.partition(":")[0], network, s.by_scale(3, 8, 5), recipe)
    fine = recipe.but(epochs=s.by_scale(3, 4, recipe.epochs))
    plan.baseline()
    for layer in layers:
        for kind, words in _KINDS.items():
            for seed, member in zip(zoo.seeds, zoo.members):  # every network gets an element of its own
                job = FineTuned(
                    checkpoint=member.path.as_posix(), layer=layer, kind=kind, data=s.data_spec, seed=seed,
                    examples=s.by_scale(200, 10_000, None), device=s.device, recipe=fine.to_dict(),
                )  # fmt: skip
                plan.add(job, words, member.name)
    plan.note(
        "Accuracy lost, 0.01 is a point. Every network has its own element for every layer, and is fine-tuned for "
        f"{fine.epochs} epochs on {s.by_scale('200', '10,000', 'all')} images.",
        "There is no batch norm, which would undo scales. Scales are lognormal with mean 1, rotations are Haar.",
    )


def _analyse(found: Findings) -> None:
    lost = {words: found.values.by_layer("penalty", words) for words in _KINDS.values()}
    extra = {layer: lost["rotation"][layer] - lost["G_ReLU"][layer] for layer in lost["rotation"]}
    mean = mean_of(extra.values())
    for statistic, title in (("penalty", ""), ("penalty at once", ", before fine-tuning")):
        for words in _KINDS.values():
            found.show(f"{words}{title}", found.values.by_layer(statistic, words))
    found.show(_EXTRA, extra)
    found.show(f"{_EXTRA} on average", {"all layers": mean})
    found.accuracies({"myrtle_cnn": (0.81, None)})
    text, guard = "rotations cost more than elements of G_ReLU", found.guard()
    found.state(f"{text}, on average over layers", {_EXTRA: mean}, above=0, guard=guard)
    found.state(f"{text} at every layer", extra, above=0, guard=guard)


_TITLE = "Rotation penalties of a Myrtle CNN"
EXPERIMENTS = (Experiment("fig4-rotation-penalty", _TITLE, "v2 Fig. 4 (v1 Fig. 7)", _plan, _analyse),)
