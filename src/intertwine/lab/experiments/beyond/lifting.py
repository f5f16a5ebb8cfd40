"""Lifting against ensembling: what one does with the gates of shallow linear features (paper 2, section 3.3).

"Using the gates to lift (instead of ensembling) the computations to the dual space in the value network is playing a
critical role, investigating which is an important future work." Print compares a deep network with an ensemble of
shallow ones, which differ in their gates, too. Here both uses are given the *same* layers of gates, each from one
linear map of the input. Laid depth-wise (lifted) they have the path kernel ``<x, y> prod_l <G_l(x), G_l(y)>``, as an
ensemble of networks with one layer of gates each ``<x, y> sum_l <G_l(x), G_l(y)>``; kernel regression is what
infinitely wide value networks learn. The gates are random, trained in a lifted network (DLGN-SF), or trained in the
members of an ensemble.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ....gates import dlgn_sf, gate_patterns, kernel_regression, product_kernel
from ...data import load
from ...networks import build, fit_to, gated_spec
from ...runs import Job
from ...training import recipe_for, train
from ..estimates import of_runs
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim

_SOURCES = ("random gates", "gates of a lifted network", "gates of an ensemble")
_USES = ("lifted", "ensembled", "one layer")
_ACCURACY, _MORE, _LEARNT = "networks, test accuracy", "lifted - ensembled", 0.3


def used(x: Tensor, gates: list[Tensor], y: Tensor, gates_y: list[Tensor]) -> dict[str, Tensor]:
    """Path kernels ``(N, M)`` of the same gates, by use: laid depth-wise, as an ensemble, and of the first layer alone.

    Args:
        x: Inputs ``(N, d)``.
        gates: Of each layer ``(N, w)``.
        y: Inputs ``(M, d)``.
        gates_y: Their gates.

    Examples:
        >>> x, gates = torch.ones(1, 2), [torch.tensor([[True, True]]), torch.tensor([[True, False]])]
        >>> {use: kernel.item() for use, kernel in used(x, gates, x, gates).items()}
        {'lifted': 4.0, 'ensembled': 6.0, 'one layer': 4.0}
    """

    def kernel(chosen: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
        return cast(Tensor, product_kernel(x, chosen, y, other, progress=False))

    each = [kernel([a], [b]) for a, b in zip(gates, gates_y, strict=True)]
    return {"lifted": kernel(gates, gates_y), "ensembled": torch.stack(each).sum(0), "one layer": each[0]}


class SameGates(Job):
    """One set of gates from every source, in every use."""

    gpus: ClassVar[float] = 0.25

    layers: int  # Of gates
    width: int  # Gates of a layer
    data: str  # As ``lab.data.load`` takes it
    examples: int | None  # Training images of networks
    fitted: int  # Of these, those of the kernel regression
    tested: int  # Test images
    recipe: dict[str, Any]  # Settings that differ from the recipe for this data
    seed: int  # Of weights and order
    device: str = "auto"  # Where networks are trained

    def run(self, files: Path) -> dict[str, dict[str, float]]:
        """Train networks, and regress.

        Returns:
            By source of the gates, the accuracy of each use; under ``networks`` those of the trained networks.
        """
        data = load(self.data).first(self.examples)
        fit = lambda text: fit_to(text, data.shape, len(data.classes))
        recipe = recipe_for(data.shape).but(**self.recipe)
        deep = "mlp:widths=" + "-".join([str(self.width)] * self.layers)
        trained = lambda text, k: train(
            fit(text), data, recipe, seed=1000 * self.seed + k, out=files / f"{k}.safetensors", device=self.device,
            progress=False,
        )  # fmt: skip
        members = [trained(f"mlp:widths={self.width}", k) for k in range(self.layers)]
        lifted = trained(gated_spec("dlgn_sf", deep), self.layers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            untrained = dlgn_sf(build(fit(deep)), torch.zeros(1, *data.shape), seed=self.seed)
        sources: list[list[Any]] = [[untrained.gating], [lifted.model.gating], [m.model for m in members]]
        known, labels = data.loader("train").batch(slice(0, self.fitted))
        new, truth = data.loader("test").batch(slice(0, self.tested))
        alone = sum(map(_tested, members)) / len(members)
        found = {"networks": {"lifted": _tested(lifted), "members of the ensemble": alone}}
        for source, networks in zip(_SOURCES, sources):
            gates, gates_new = (_gates(networks, x) for x in (known, new))
            flat = known.flatten(1), new.flatten(1)
            square, across = used(flat[0], gates, flat[0], gates), used(flat[1], gates_new, flat[0], gates)
            found[source] = {use: kernel_regression(square[use], labels).accuracy(across[use], truth) for use in _USES}
        return found


def _tested(done: Any) -> float:
    return float(done.card.metrics["test_accuracy"] or 0.0)


@torch.no_grad()
def _gates(networks: list[nn.Module], x: Tensor) -> list[Tensor]:
    """Hard gates of every layer: of the maps of a DLGN-SF, or of the hidden layers of ReLU networks."""
    found: list[Tensor] = []
    for network in networks:
        network = network.cpu().eval()
        shallow = isinstance(network, nn.Module) and hasattr(network, "maps")
        found += [q > 0 for q in network(x)] if shallow else list(gate_patterns(network, x).values())
    return found


def _measure(setting: Setting) -> Measured:
    layers, width, seeds = 4, setting.by_scale(32, 64, 512), setting.by_scale(2, 6, 6)
    recipe = setting.by_scale({"epochs": 2, "batch_size": 64}, {"epochs": 8, "batch_size": 128}, {})
    how: dict[str, Any] = {
        "layers": layers, "width": width, "examples": setting.by_scale(400, 5000, None),
        "fitted": setting.by_scale(100, 1000, 5000), "tested": setting.by_scale(100, 1000, 5000), "recipe": recipe,
    }  # fmt: skip
    values = setting.run([
        SameGates(**how, data=setting.data_spec, seed=setting.seed + k, device=setting.device) for k in range(seeds)
    ])  # fmt: skip
    names = values[0]["networks"]
    rows = [Row.of(name, of_runs(v["networks"][name] for v in values), group=_ACCURACY) for name in names]
    rows += [Row.of(source, of_runs(v[source][use] for v in values), group=use) for use in _USES for source in _SOURCES]
    rows += [
        Row.of(source, of_runs(v[source]["lifted"] - v[source]["ensembled"] for v in values), group=_MORE)
        for source in _SOURCES
    ]
    notes = [
        f"{layers} layers of {width} gates, each from one linear map of the image; kernel regression from "
        f"{how['fitted']} images, tested on {how['tested']}; {seeds} seeds, intervals over seeds.",
        "Print compares C1GAP-16-ENS with VGG-16-DLGN-SF, about 10 points: see p2-table3.",
    ]
    return Measured(rows, notes)


def _judge(found: Reproduction) -> list[Claim]:
    networks = Trained(found.table[_ACCURACY], _LEARNT)
    more = found.table.get(_MORE, {})
    alone = {k: e - found.table["one layer"][k] for k, e in found.table["ensembled"].items()}
    return [
        *(claim(f"{source}: lifting is better than ensembling the same gates", {source: e}, above=0, trained=networks)
          for source, e in more.items()),
        claim("an ensemble is better than one of its layers", alone, above=0, trained=networks),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment(
        "open-lifting", "Gates lifted to depth, or ensembled", "left open by paper 2, section 3.3", _measure, _judge
    ),
)
