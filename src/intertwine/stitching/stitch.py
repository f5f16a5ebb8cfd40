"""Stitching two networks: one call from models and data to penalties, by a plan of layers, families and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._random import mixed
from .._result import of_networks
from ..features.batches import check_repeatable, peek, repeatable
from ..groups import Group, PositiveMonomial
from .choose_alpha import choose_alpha
from .closed_form import Moments, group_procrustes
from .families import family_of, takes
from .layer import StitchingLayer
from .linear_layers import sparsity
from .options import RECIPES, Recipe, StitchOptions
from .pair import At, Cut, Pair, stream_moments
from .penalty import Evaluation, drift, evaluate, labels_of, recalibrate
from .permutation_layers import Birkhoff
from .result import Stitching, StitchingStudy, paired_with, pairing_of
from .stitched import Stitched
from .train_layers import Trained, train_layers

Family = str | Group
Method = Literal["task_loss", "direct"] | Recipe


@dataclass
class Planned:
    """One network of a plan."""

    cut: Cut
    place: int  # index of that cut in the plan
    family: Family
    method: str
    seed: int  # of its start and training order
    network: Stitched  # changed in place while the plan is carried out
    trained: Trained | None = None


@dataclass(frozen=True)
class Plan:
    """Networks to stitch, and how."""

    at: tuple[At, ...]
    families: tuple[Family, ...]
    methods: tuple[str, ...]  # ``"task_loss"`` or ``"direct"``
    seeds: tuple[int, ...]
    recipe: Recipe
    options: StitchOptions
    single: bool  # whether one network was asked for, not lists of one

    @classmethod
    def of(cls, at: Any, family: Any, method: Any, seeds: Any, options: StitchOptions) -> Plan:
        """The plan for what a user asked for; refused if something is missing or unknown."""
        pair = isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, str) for x in at)
        asked = {"at": at, "family": family, "method": method, "seeds": seeds}
        alone: tuple[Any, ...] = (tuple if pair else str, str | Group, str | Recipe, Integral)
        several = [(x,) if isinstance(x, kind) else tuple(x) for x, kind in zip(asked.values(), alone)]
        for name, values in zip(asked, several):
            if not values:
                raise ValueError(f"{name} must hold at least one. Got none.")
        layers, families, given, numbers = several
        methods = tuple("task_loss" if isinstance(one, Recipe) else one for one in given)
        for one in methods:
            if one not in ("task_loss", "direct"):
                raise ValueError(f'method must be "task_loss", "direct" or a Recipe. Got {one!r}.')
        if len(set(methods)) < len(methods):
            raise ValueError(f"method must hold one way of training at most. Got {len(methods)} methods, {given}.")
        unknown = [key for key in options.settings if not any(takes(one, key) for one in families)]
        if unknown:
            raise ValueError(f"settings must be of the families {families}. Got {', '.join(unknown)}.")
        recipe = next((one for one in given if isinstance(one, Recipe)), RECIPES["v1"])
        single = all(not isinstance(x, list) and len(values) == 1 for x, values in zip(asked.values(), several))
        return cls(layers, families, methods, tuple(map(int, numbers)), recipe, options, single)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Options that results keep."""
        options = self.options
        return {
            "recipe": asdict(self.recipe), "start": options.start, "tail_norm": options.tail_norm,
            "recalibration": options.recalibration, "bias": options.bias, "options": dict(options.settings),
        }  # fmt: skip

    def networks(self, cuts: Sequence[Cut]) -> list[Planned]:
        """A network for every cut, family, method and seed; one seed is enough for what is not trained."""
        return [
            Planned(cut, place, family, method, seed, self._network(cut, family, seed))
            for place, cut in enumerate(cuts)
            for family in self.families
            for method in self.methods
            for seed in (self.seeds if method == "task_loss" else self.seeds[:1])
        ]

    def _network(self, cut: Cut, family: Family, seed: int) -> Stitched:
        settings = {k: v for k, v in self.options.settings.items() if takes(family, k) and v != "cv"}
        layers = [
            family_of(
                family, one.c_in, one.c_out, bias=self.options.bias, channel_dim=one.channel_dim, seed=seed, **settings
            ).to(cut.device)
            for one in cut.mapped
        ]
        for layer in layers:
            layer.origin = f"{self.options.start} start, seed {seed}"
        return cut.stitch(layers[0], layers[1:], self.options.tail_norm)


@of_networks("a", "b")
def stitch(
    a: nn.Module,
    b: nn.Module,
    at: At | Sequence[At],
    family: Family | Sequence[Family] = "g_relu",
    *,
    loader: Iterable[Any],
    eval_loader: Iterable[Any] | None = None,
    method: Method | Sequence[Method] = "task_loss",
    seeds: int | Sequence[int] = 0,
    options: StitchOptions | None = None,
) -> Stitching | StitchingStudy:
    """Join the early layers of A to the late layers of B through a map of one family, and measure what is lost.

    ``S = f~_{>l} . phi . f_{<=l}`` with ``phi`` a 1x1 convolution restricted to the family (paper 1, section 4). Models
    are never changed: weights and batch-norm statistics are copied. The layer is fitted to ``loader``; ``eval_loader``
    is used once, at the end, and nothing is chosen by it.

    Differs from the paper in where training starts and which epoch counts. It starts at the family's closed-form
    solution, because from a random start on little data projected gradient descent does not find a planted permutation;
    ``StitchOptions(start="random")`` is the paper's. The best of the start and all epochs counts, judged on *training*
    data with maps rounded and batch norm measured anew, because rounding can lose what the relaxed map gained;
    ``Recipe(keep="last")`` is the paper's. One layer, family, method and seed give a ``Stitching``, several a study.

    Args:
        a: Network A, whose early layers are used.
        b: Network B, whose late layers are used; on the same device.
        at: A layer that both have, ``(layer of A, layer of B)``, or a list of such.
        family: ``"g_relu"``, ``"full"``, ``"rank-4"``, ``"lasso"``, ``"orthogonal"``, ``"softsort"``, ... (see
            ``intertwine.stitching.families()``), any group, or a list of such.
        loader: Training data, readable several times: batches ``(inputs, labels, ...)``.
        eval_loader: Data on which penalties are measured; ``None``: ``loader`` itself, with a note.
        method: ``"task_loss"`` trains the layer on B's task (the paper), by its v1 recipe; a ``Recipe`` trains by that
            one; ``"direct"`` takes the closed-form solution on activations. A list runs several.
        seeds: Seeds of starts and training order; one stitched network for each (trained ones only).
        options: Skip connections, starts, batch norm, settings of families, names: see ``StitchOptions``.

    Raises:
        ValueError: If a layer is unknown, cannot be cut, or has features that cannot be related; if a family or option
            is unknown; if batches have no labels.
        TypeError: If a loader cannot be read several times.
        RuntimeError: If the loss of every layer stopped being finite.

    Examples:
        >>> import intertwine as iw
        >>> from intertwine.stitching import stitch
        >>> _ = torch.manual_seed(0)
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(64, 4)
        >>> data = [(x, a(x).argmax(1))]
        >>> sym = iw.symmetries(a, x)
        >>> twin = sym.act(sym.random(seed=0), a)
        >>> stitch(a, twin, "1", "g_relu", loader=data, method="direct").penalty  # Theorem 4.2
        0.0
    """  # noqa: DOC502 - the helpers raise
    options = options or StitchOptions()
    check_repeatable(loader)
    check_repeatable(loader if eval_loader is None else eval_loader, "eval_loader")
    plan = Plan.of(at, family, method, seeds, options)
    loader = repeatable(loader, mixed(plan.seeds[0], "stitch"))
    data = loader if eval_loader is None else repeatable(eval_loader, mixed(plan.seeds[0], "evaluation"))
    batch = peek(loader)[0]
    pair = Pair(a, b, batch)
    labels_of(batch, pair.classes)  # refuses them before the long work
    cuts = [pair.cut(one, options.skip) for one in plan.at]
    runs = plan.networks(cuts)
    moments = stream_moments(pair, cuts, loader, progress=options.progress)
    if still := [cut.name for cut, (one, *_) in zip(cuts, moments) if not one.centred().live_y.any()]:
        raise ValueError(f"B's features must vary at every layer. Got constant ones at {', '.join(still)}.")
    for run in runs:
        if run.method == "direct" or options.start == "direct":
            for layer, one in zip(run.network.layers, moments[run.place]):
                layer.start(one)
    if options.settings.get("alpha") == "cv":
        _choose_alphas(runs, plan, moments, loader)
    _train(runs, plan, loader)
    networks = [run.network for run in runs]
    if options.recalibration:
        recalibrate(networks, loader, progress=options.progress)
    found = evaluate(pair, networks, data, progress=options.progress)
    seen = moments if eval_loader is None else stream_moments(pair, cuts, data, progress=options.progress)
    notes = () if eval_loader is not None else ("measured on the training data: no eval_loader was given",)
    results = [
        _result(run, plan, found, i, (moments[run.place][0], seen[run.place][0]), notes) for i, run in enumerate(runs)
    ]
    return results[0] if plan.single else StitchingStudy(tuple(results), {**plan.facts, "skip": options.skip})


def _choose_alphas(
    runs: Sequence[Planned], plan: Plan, moments: Sequence[Sequence[Moments]], loader: Iterable[Any]
) -> None:
    """Choose alpha by cross-validation once for every layer and family, and give it to all seeds."""
    chosen: dict[tuple[int, Family], float] = {}
    for run in (run for run in runs if run.method == "task_loss" and takes(run.family, "alpha")):
        key = run.place, run.family
        if key not in chosen:
            own = {name: value for name, value in plan.options.settings.items() if takes(run.family, name)}
            start = moments[run.place][0] if plan.options.start == "direct" else None
            recipe = replace(plan.recipe, epochs=min(plan.recipe.epochs, 5), head_start=0)
            asked: dict[str, Any] = {"recipe": recipe, "moments": start, "options": replace(plan.options, settings=own)}
            chosen[key] = choose_alpha(run.cut, run.family, loader, seed=plan.seeds[0], **asked).alpha
        for part in (part for layer in run.network.layers for part in layer.modules()):
            if isinstance(part, Birkhoff):
                part.alpha = chosen[key]


def _train(runs: Sequence[Planned], plan: Plan, loader: Iterable[Any]) -> None:
    """Train what is to be trained; layers of one cut and seed train behind one trunk."""
    options = plan.options
    groups: dict[tuple[int, int], list[Planned]] = {}
    for run in runs:
        if run.method == "task_loss":
            # From random starts, seeds differ anyway and share the trunk; from one start, by their order of data.
            groups.setdefault((run.place, run.seed if options.start == "direct" else plan.seeds[0]), []).append(run)
    for i, ((_, seed), group) in enumerate(groups.items()):
        path = None if options.state is None else Path(options.state).with_name(f"{i}-{Path(options.state).name}")
        asked: dict[str, Any] = {"state": path, "recalibration": options.recalibration, "progress": options.progress}
        trained = train_layers([run.network for run in group], loader, plan.recipe, seed=seed, **asked)
        for run, one in zip(group, trained):
            run.trained = one


def _result(
    run: Planned, plan: Plan, found: Evaluation, i: int, moments: tuple[Moments, Moments], notes: tuple[str, ...]
) -> Stitching:
    """One row of the study; ``moments`` are those of the fitting data and of the evaluation data."""
    layer, net, trained = run.network.layer, run.network, run.trained
    matrix = layer.rounded().detach().clone()
    offset = None if layer.bias is None else layer.bias.detach().clone()
    stopped = None if trained is None else trained.stopped_at
    if stopped is not None:
        notes = (*notes, f"the loss was no longer finite at step {stopped}; the map is the last good one")
    pairing, agreement = _pairing(matrix, layer, moments[0])
    skips = [one.fixed() for one in net.layers[1:]]
    return Stitching(
        layer_a=run.cut.at[0], layer_b=run.cut.at[1], family=layer.family or repr(run.family),
        method=run.method, seed=run.seed,
        accuracy=found.accuracies[i], accuracy_a=found.accuracy_a, accuracy_b=found.accuracy_b, error=found.errors[i],
        examples=found.examples, inside_block=run.cut.inside_block, skip=run.cut.skip, c_in=layer.c_in,
        c_out=layer.c_out, parameters=layer.parameters_count, dim=layer.dim, log_components=layer.log_components,
        drift=drift(moments[1], matrix, offset), doubly_stochastic_error=layer.doubly_stochastic_error(),
        agreement=agreement, sparsity=sparsity(matrix), alpha=getattr(layer, "alpha", None),
        history=() if trained is None else tuple(asdict(epoch) for epoch in trained.history), stopped_at=stopped,
        kept=None if trained is None else trained.kept, start_loss=None if trained is None else trained.start_loss,
        pairing=pairing, names=plan.options.names, notes=(*notes, *run.cut.notes),
        settings={**plan.facts, "relation": run.cut.trunk.relation.kind}, matrix=matrix, bias=offset,
        skip_maps=tuple((one.matrix(), one.bias) for one in skips), statistics=net.tail.statistics(), model=net,
    )  # fmt: skip


def _pairing(
    matrix: Tensor, layer: StitchingLayer, moments: Moments
) -> tuple[dict[str, list[Any]] | None, float | None]:
    """The matched channels, also in G_ReLU's closed form (its start), and the share of live rows where both agree."""
    pairing = pairing_of(matrix)
    if pairing is None or not layer.log_components:
        return pairing, None
    group = PositiveMonomial(max(layer.c_in, layer.c_out))
    seen = moments if layer.bias is None else moments.centred()
    closed = paired_with(group_procrustes(group, seen)).cpu()
    live = moments.live_y.cpu()
    pairing |= {"closed_form": closed.tolist(), "live": live.tolist()}
    same = (torch.tensor(pairing["index"]) == closed)[live]
    return pairing, float(same.double().mean()) if bool(live.any()) else None
