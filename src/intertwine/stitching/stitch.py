"""Stitch two networks: one call from models and data to penalties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from .._random import mixed
from ..features.repeatable import repeatable
from ..groups import Group, PositiveMonomial
from ._batches import check_loader, first_batch, labels_of
from .alpha import choose_alpha
from .closed_form import group_procrustes
from .cut import Cut, Skip
from .drift import drift
from .layer import StitchingLayer
from .layers.birkhoff import Birkhoff
from .layers.families import family_of, takes
from .layers.lasso import sparsity
from .moments import Moments
from .pair import At, Pair, stream_moments
from .penalty import Evaluation, evaluate
from .recalibrate import recalibrate
from .result import Stitching, StitchingStudy, pairing_of
from .stitched import Stitched
from .training import RECIPES, Recipe, Trained, train_layers

__all__ = ["stitch"]

Method = Literal["task_loss", "direct"]
Family = str | Group
Start = Literal["direct", "random"]


def stitch(
    a: nn.Module,
    b: nn.Module,
    at: At | Sequence[At],
    family: Family | Sequence[Family] = "g_relu",
    *,
    loader: Iterable[Any],
    eval_loader: Iterable[Any] | None = None,
    method: Method | Sequence[Method] = "task_loss",
    skip: Skip = "a",
    start: Start = "direct",
    recipe: Recipe | str = "v1",
    tail_norm: Literal["eval", "train"] = "eval",
    recalibration: bool = True,
    bias: bool = False,
    seeds: int | Sequence[int] = 0,
    options: Mapping[str, Any] | None = None,
    names: tuple[str, str] = ("A", "B"),
    state: str | Path | None = None,
    progress: bool = False,
) -> Stitching | StitchingStudy:
    """Join the early layers of A to the late layers of B through a map of one family, and measure what is lost.

    ``S = f~_{>l} . phi . f_{<=l}`` with ``phi`` a 1x1 convolution restricted to the family (paper 1, section 4). Models
    are never changed: weights and batch-norm statistics are copied. The layer is fitted to
    ``loader``; nothing is chosen by ``eval_loader``, which is looked at once, at the end.

    Differs from the paper in where training starts and which epoch counts. It starts at the family's closed-form
    solution, because from a random start on little data projected gradient descent does not find a planted permutation;
    ``start="random"`` is the paper's. The best of the start and all epochs counts, judged on *training* data by maps
    rounded and batch norm measured anew, because rounding can lose what the relaxed map gained;
    ``Recipe(keep="last")`` is the paper's.

    Args:
        a: Network A, whose early layers are used.
        b: Network B, whose late layers are used; on the same device.
        at: A layer that both have, ``(layer of A, layer of B)``, or a list of such.
        family: ``"g_relu"``, ``"full"``, ``"rank-4"``, ``"lasso"``, ``"orthogonal"``, ``"softsort"``, ... (see
            ``intertwine.stitching.families()``), any group, or a list of such.
        loader: Training data, readable several times: batches ``(inputs, labels, ...)``.
        eval_loader: Data that penalties are measured on; ``loader`` itself, with a note, if ``None``.
        method: ``"task_loss"`` trains the layer on B's task (the paper); ``"direct"`` takes the closed-form solution on
            activations. A list does both.
        skip: Inside residual blocks: A's skip connections as they are (``"a"``, the paper), each mapped by a layer of
            the family (``"mapped"``), or B's own (``"b"``).
        start: Where training starts: ``"direct"`` or ``"random"``.
        recipe: ``"v1"`` (SGD, momentum 0.9), ``"v2"`` (plain SGD) or a ``Recipe``.
        tail_norm: Batch norm of the tail while layers are trained: ``"eval"`` with B's statistics, ``"train"`` with the
            batch's (the reference code).
        recalibration: Whether the tail's batch-norm statistics are found anew before evaluation, for every family.
        bias: Whether layers have a bias; the paper's do not.
        seeds: Of starts and training order; one stitched network for each (trained ones only).
        options: Settings of families, such as ``{"alpha": 0.01, "tau": 0.1}``; each family takes its own. ``{"alpha":
            "cv"}`` chooses alpha by cross-validation on a part of ``loader`` (v2 D.5).
        names: What the models are called in results and intervals.
        state: File that keeps interrupted training; see ``train_layers``.
        progress: Whether to show progress.

    Returns:
        A ``Stitching`` where one layer, family, method and seed are given, a ``StitchingStudy`` otherwise.

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
    check_loader(loader)
    check_loader(loader if eval_loader is None else eval_loader, "eval_loader")
    plan, given = _Plan.of(at, family, method, seeds, recipe, start), dict(options or {})
    loader = repeatable(loader, mixed(plan.seeds[0], "stitch"))
    eval_loader = None if eval_loader is None else repeatable(eval_loader, mixed(plan.seeds[0], "evaluation"))
    batch = first_batch(loader)
    pair = Pair(a, b, batch)
    _check_labels(labels_of(batch), pair.classes)
    cuts = [pair.cut(one, skip) for one in plan.at]
    runs = _prepare(plan, cuts, tail_norm, bias, given)
    moments = stream_moments(pair, cuts, loader, progress=progress)
    for run in runs:
        if run.method == "direct" or start == "direct":
            run.start_from(moments[run.place])
    if given.get("alpha") == "cv":
        _choose_alphas(runs, plan, moments, loader, tail_norm, given, progress)
    _train(runs, plan, loader, recalibration, state, progress)
    networks = [run.network for run in runs]
    if recalibration:
        recalibrate(networks, loader, progress=progress)
    data = loader if eval_loader is None else eval_loader
    found = evaluate(pair, networks, data, progress=progress)
    seen = moments if eval_loader is None else stream_moments(pair, cuts, data, progress=progress)
    notes = () if eval_loader is not None else ("measured on the training data: no eval_loader was given",)
    settings = {
        "recipe": asdict(plan.recipe), "start": start, "tail_norm": tail_norm, "recalibration": recalibration,
        "bias": bias, "options": given,
    }  # fmt: skip
    results = [
        _result(run, found, i, moments[run.place][0], seen[run.place][0], names, settings, notes)
        for i, run in enumerate(runs)
    ]
    return results[0] if plan.single else StitchingStudy(tuple(results), {**settings, "skip": skip})


def _check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that no output stands for.

    Raises:
        ValueError: If there are such.
    """
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, B's {classes} outputs. Got {low} to {high}.")


@dataclass(frozen=True)
class _Plan:
    """What to stitch, checked."""

    at: tuple[At, ...]
    families: tuple[Family, ...]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    recipe: Recipe
    start: Start
    single: bool

    @classmethod
    def of(cls, at: Any, family: Any, method: Any, seeds: Any, recipe: Recipe | str, start: Start) -> _Plan:
        pair = isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, str) for x in at)
        layers = (at,) if isinstance(at, str) or pair else tuple(at)
        families = (family,) if isinstance(family, str | Group) else tuple(family)
        methods = (method,) if isinstance(method, str) else tuple(method)
        numbers = (seeds,) if isinstance(seeds, int) else tuple(seeds)
        for name, values in (("at", layers), ("family", families), ("method", methods), ("seeds", numbers)):
            if not values:
                raise ValueError(f"{name} must hold at least one. Got none.")
        for one in methods:
            if one not in ("task_loss", "direct"):
                raise ValueError(f'method must be "task_loss" or "direct". Got {one!r}.')
        if start not in ("direct", "random"):
            raise ValueError(f'start must be "direct" or "random". Got {start!r}.')
        if isinstance(recipe, str) and recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, or a Recipe. Got {recipe!r}.")
        chosen = RECIPES[recipe] if isinstance(recipe, str) else recipe
        single = all(
            not isinstance(value, list) and len(values) == 1
            for value, values in ((at, layers), (family, families), (method, methods), (seeds, numbers))
        )
        return cls(layers, families, cast("tuple[Method, ...]", methods), numbers, chosen, start, single)


@dataclass
class _Run:
    """One stitched network on its way."""

    cut: Cut
    place: int
    asked: Family
    method: Method
    seed: int
    network: Stitched
    trained: Trained | None = None

    @property
    def layers(self) -> list[StitchingLayer]:
        return [self.network.layer, *cast("list[StitchingLayer]", list(self.network.skip_layers))]

    def start_from(self, moments: Sequence[Moments]) -> None:
        with torch.no_grad():
            for layer, one in zip(self.layers, moments):
                layer.start(one)


def _prepare(
    plan: _Plan, cuts: Sequence[Cut], tail_norm: Literal["eval", "train"], bias: bool, options: dict[str, Any]
) -> list[_Run]:
    unknown = [key for key in options if not any(takes(family, key) for family in plan.families)]
    if unknown:
        raise ValueError(f"options must be settings of the families {plan.families}. Got {', '.join(unknown)}.")
    runs = []
    for place, cut in enumerate(cuts):
        for family in plan.families:
            own = {key: value for key, value in options.items() if takes(family, key) and value != "cv"}
            for method in plan.methods:
                for seed in plan.seeds if method == "task_loss" else plan.seeds[:1]:
                    layers = [
                        family_of(
                            c_family, one.c_in, one.c_out, bias=bias, channel_dim=one.channel_dim, seed=seed, **own
                        )
                        for one, c_family in zip(
                            (cut.tap, *(cut.skips if cut.skip == "mapped" else ())), (family,) * (1 + len(cut.skips))
                        )
                    ]
                    tensor = next(cut.tail.buffers())
                    layers = [layer.to(tensor.device) for layer in layers]
                    network = cut.stitch(layers[0], layers[1:], tail_norm)
                    runs.append(_Run(cut, place, family, method, seed, network))
    return runs


def _choose_alphas(
    runs: Sequence[_Run],
    plan: _Plan,
    moments: Sequence[Sequence[Moments]],
    loader: Iterable[Any],
    tail_norm: Literal["eval", "train"],
    options: Mapping[str, Any],
    progress: bool,
) -> None:
    """Cross-validate alpha once for every layer and family, and give it to all seeds."""
    chosen: dict[tuple[int, Family], float] = {}
    for run in (run for run in runs if run.method == "task_loss" and takes(run.asked, "alpha")):
        key = run.place, run.asked
        if key not in chosen:
            own = {name: value for name, value in options.items() if takes(run.asked, name) and name != "alpha"}
            recipe = replace(plan.recipe, epochs=min(plan.recipe.epochs, 5), head_start=0)
            start = moments[run.place][0] if plan.start == "direct" else None
            chosen[key] = choose_alpha(
                run.cut,
                run.asked,
                loader,
                recipe=recipe,
                moments=start,
                tail_norm=tail_norm,
                seed=plan.seeds[0],
                progress=progress,
                **own,
            ).alpha
        for layer in run.layers:
            for part in layer.modules():
                if isinstance(part, Birkhoff):
                    part.alpha = chosen[key]


def _train(
    runs: Sequence[_Run],
    plan: _Plan,
    loader: Iterable[Any],
    recalibration: bool,
    state: str | Path | None,
    progress: bool,
) -> None:
    """Train what is to be trained; layers of one cut and seed run behind one trunk."""
    groups: dict[tuple[int, int], list[_Run]] = {}
    for run in runs:
        if run.method == "task_loss":
            # From random starts seeds differ by themselves and share the trunk; from one start, by their order of data.
            groups.setdefault((run.place, run.seed if plan.start == "direct" else plan.seeds[0]), []).append(run)
    for i, ((_, seed), group) in enumerate(groups.items()):
        path = None if state is None else Path(state).with_name(f"{i}-{Path(state).name}")
        networks = [run.network for run in group]
        trained = train_layers(
            networks, loader, plan.recipe, seed=seed, recalibration=recalibration, state=path, progress=progress
        )
        for run, one in zip(group, trained):
            run.trained = one


def _result(
    run: _Run,
    found: Evaluation,
    i: int,
    fitted: Moments,
    seen: Moments,
    names: tuple[str, str],
    settings: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Stitching:
    layer, net = run.network.layer, run.network
    matrix = layer.rounded().detach().clone()
    offset = None if layer.bias is None else layer.bias.detach().clone()
    history = () if run.trained is None else tuple(asdict(epoch) for epoch in run.trained.history)
    stopped = None if run.trained is None else run.trained.stopped_at
    if stopped is not None:
        notes = (*notes, f"the loss was no longer finite at step {stopped}; the map is the last good one")
    pairing, agreement = _pairing(matrix, layer, fitted)
    skips = [one.fixed() for one in cast("list[StitchingLayer]", list(net.skip_layers))]
    return Stitching(
        layer_a=run.cut.at[0], layer_b=run.cut.at[1], family=layer.family or repr(run.asked),
        method=run.method, seed=run.seed,
        accuracy=found.accuracies[i], accuracy_a=found.accuracy_a, accuracy_b=found.accuracy_b, error=found.errors[i],
        examples=found.examples, inside_block=run.cut.inside_block, skip=run.cut.skip, c_in=layer.c_in,
        c_out=layer.c_out, parameters=layer.parameters_count, dim=layer.dim, log_components=layer.log_components,
        drift=drift(seen, matrix, offset), doubly_stochastic_error=layer.doubly_stochastic_error(),
        agreement=agreement, sparsity=sparsity(matrix), alpha=getattr(layer, "alpha", None),
        history=history, stopped_at=stopped, kept=None if run.trained is None else run.trained.kept,
        start_loss=None if run.trained is None else run.trained.start_loss, pairing=pairing, names=names,
        settings={**settings, "relation": run.cut.trunk.relation.kind}, notes=(*notes, *run.cut.notes), matrix=matrix,
        bias=offset, skip_maps=tuple((one.matrix(), one.bias) for one in skips), statistics=net.tail.statistics(),
        model=net,
    )  # fmt: skip


def _pairing(
    matrix: Tensor, layer: StitchingLayer, moments: Moments
) -> tuple[dict[str, list[Any]] | None, float | None]:
    """Who is matched with whom, in G_ReLU's closed form too (where it starts), and on how many live rows both agree."""
    pairing = pairing_of(matrix)
    if pairing is None or not layer.log_components:
        return pairing, None
    group = PositiveMonomial(max(layer.c_in, layer.c_out))
    seen = moments if layer.bias is None else moments.centred()
    closed = _index(group_procrustes(group, seen)).cpu()
    live = moments.live_y.cpu()
    pairing |= {"closed_form": closed.tolist(), "live": live.tolist()}
    same = (torch.tensor(pairing["index"]) == closed)[live]
    return pairing, float(same.double().mean()) if bool(live.any()) else None


def _index(matrix: Tensor) -> Tensor:
    entries = matrix != 0
    return torch.where(entries.any(1), entries.double().argmax(1), -1)
