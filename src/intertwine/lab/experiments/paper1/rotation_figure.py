"""Rotation penalties of a Myrtle CNN, layer by layer (paper 1, v2 Fig. 4, v1 Fig. 7).

The figure is an image: what is checked are its claims in words.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ...data import load
from ...networks import build
from ...runs import Job
from ...training import Recipe, load_checkpoint
from ..estimates import Estimate, mean_of, minus, of_runs
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, recipe_at, trained, trained_words, zoo_for
from .rotation_penalty import rotation_penalty

KINDS = {"orthogonal": "rotation", "g_relu": "G_ReLU"}
EXTRA = "rotation - G_ReLU"
_MEAN = "rotation - G_ReLU on average"


class FineTuned(Job):
    """One layer of one trained network, transformed, and the later layers trained again."""

    gpus: ClassVar[float] = 0.5

    checkpoint: str  # The network, without batch norm
    layer: str  # The convolution
    kind: str  # ``"orthogonal"`` or ``"g_relu"``
    data: str  # As ``lab.data.load`` takes it
    examples: int | None  # Training examples; all of them if ``None``
    recipe: dict[str, Any]  # Of fine-tuning
    seed: int  # Of the element and of fine-tuning
    device: str = "auto"  # Where

    def run(self, files: Path) -> dict[str, float]:
        """Accuracies before, right after the transformation, and after fine-tuning."""
        data = load(self.data).first(self.examples)
        found = rotation_penalty(
            load_checkpoint(self.checkpoint), self.layer, self.kind, data, Recipe(**self.recipe),  # type: ignore[arg-type]
            seed=self.seed, device=self.device,
        )  # fmt: skip
        return {"before": found.before, "transformed": found.transformed, "after": found.after}


def claims_of(table: Mapping[str, Mapping[str, Estimate]], networks: Trained) -> list[Claim]:
    """What the paper says in words of layers together: elements of G_ReLU cost significantly less than rotations.

    Args:
        table: How much more rotations cost, under ``EXTRA``, and both penalties.
        networks: Those that were transformed.
    """
    extra = table.get(EXTRA) or minus(table["rotation"], table["G_ReLU"])
    text = "rotations cost more than elements of G_ReLU"
    mean = table.get(_MEAN, {}).get("all layers") or mean_of(extra.values())
    return [
        claim(f"{text}, on average over layers", {EXTRA: mean}, above=0, trained=networks),
        claim(f"{text} at every layer", extra, above=0, trained=networks),
    ]


def _measure(setting: Setting) -> Measured:
    network = setting.fitted("digits_cnn:bn=false,width=8", "myrtle_cnn:bn=false,base=16", "myrtle_cnn:bn=false")
    # Layers before every ReLU but the last: behind that one there is only the classifier.
    *layers, _ = (name for name, m in build(network).named_modules() if isinstance(m, nn.Conv2d))
    # Without batch norm a lower rate, and more epochs to 75 %.
    recipe = recipe_at(setting, **setting.by_scale({}, {"epochs": 8, "learning_rate": 4e-3}, {}))
    zoo = zoo_for(setting, network, setting.by_scale(3, 6, 5), recipe)
    fine = recipe.but(epochs=setting.by_scale(3, 4, recipe.epochs))
    jobs = [
        FineTuned(
            checkpoint=str(member.path.resolve()), layer=layer, kind=kind, data=setting.data_spec,
            seed=setting.seed + i, examples=setting.by_scale(200, 10_000, None), device=setting.device,
            recipe=fine.to_dict(),
        )
        for layer in layers
        for kind in KINDS
        for i, member in enumerate(zoo.members)  # every network gets an element of its own
    ]  # fmt: skip
    values = iter(setting.run(jobs))
    found = {(layer, kind): [next(values) for _ in zoo.members] for layer in layers for kind in KINDS}
    lost = {key: [v["before"] - v["after"] for v in listed] for key, listed in found.items()}
    extra = {k: [a - b for a, b in zip(lost[k, "orthogonal"], lost[k, "g_relu"])] for k in layers}
    rows = [
        Row.of(layer, of_runs([v["before"] - v[when] for v in found[layer, kind]]), group=words + title)
        for when, title in (("after", ""), ("transformed", ", before fine-tuning"))
        for kind, words in KINDS.items()
        for layer in layers
    ]
    rows += [Row.of(layer, of_runs(extra[layer]), group=EXTRA) for layer in layers]
    rows.append(Row.of("all layers", of_runs(sum(v) / len(v) for v in zip(*extra.values())), group=_MEAN))
    rows += accuracy_rows({network.partition(":")[0]: zoo}, {"myrtle_cnn": (0.81, None)})
    notes = [
        f"Accuracy lost, 0.01 is a point. {trained_words(zoo)}, each with an element of its own for every layer; "
        f"fine-tuned {fine.epochs} epochs on {setting.by_scale('200', '10,000', 'all')} images.",
        "Without batch norm, which would undo scales by itself; scales lognormal with mean 1; rotations Haar.",
    ]
    return Measured(rows, notes, {"network": network, "runs": len(zoo)})


def _judge(found: Reproduction) -> list[Claim]:
    return claims_of(found.table, trained(found))


EXPERIMENTS = (
    Experiment(
        "fig4-rotation-penalty",
        "Rotation penalties of a Myrtle CNN",
        "v2 Fig. 4 (v1 Fig. 7)",
        _measure,
        _judge,
    ),
)
