"""One network from several: interpolation after alignment, of all weights or of some, with repaired statistics.

Points between two networks lie on straight lines or great circles through their weights. For more than two networks the
merge is the average (MergeMany; Ainsworth, Hayase and Srinivasa 2023, Algorithm 3).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import atan2, sin
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from .._attributes import forget
from .._evaluation import check_module, copied, in_usual_mode
from ..features.spectral_norms import follow_
from ..matching.align import Alignment
from ..matching.coordinates.networks import check_matching
from ..matching.joint import gather, mean_weights
from ..matching.judgement.deviation import distance
from ..matching.solvers.solver import Solver
from ..symmetry import Symmetry
from ..symmetry.action import tensors_of, write
from .repair import batch_norms, recalibrate_, repaired_

Interpolation = Literal["linear", "spherical"]
_PARALLEL = 1e-6  # sine of the angle below which a great circle is a line
Repair = bool | Literal["recalibrate", "repair", "rescale"]
_REPAIRS = ("recalibrate", "repair", "rescale")
_SURELY = 2.0  # a swap is certain if the other way round explains so many times as much of the weights
_SHARE = 0.01  # share of the weights above what unrelated ones explain


def between(a: Tensor, b: Tensor, ratio: float, how: Interpolation = "linear") -> Tensor:
    """The point at ``ratio`` between two tensors.

    Linear: ``(1 - r) a + r b``. Spherical (Shoemake 1985), with the angle ``w`` between the flattened tensors:
    ``sin((1 - r) w) / sin(w) a + sin(r w) / sin(w) b``, which keeps the norm where both norms are equal; tensors that
    are zero or nearly parallel are interpolated linearly.

    Returns:
        A new tensor of the dtype and on the device of ``a``; ``a`` itself if it holds no real numbers or both are
        equal.

    Examples:
        >>> x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> between(x, y, 0.5), between(x, y, 0.5, "spherical")
        (tensor([0.5000, 0.5000]), tensor([0.7071, 0.7071]))
    """
    b = b.to(a.device)
    if a.is_complex():
        return torch.view_as_complex(between(torch.view_as_real(a), torch.view_as_real(b), ratio, how))
    if not a.is_floating_point() or ratio == 0 or torch.equal(a, b):
        return a  # infinities that both hold, as in masks, would become NaN
    work = torch.promote_types(a.dtype, torch.float32)
    x, y = a.to(work), b.to(work)
    if ratio == 1:
        return y.to(a.dtype)
    near, far = (1 - ratio, ratio) if how == "linear" else _on_sphere(x, y, ratio)
    return (near * x + far * y).to(a.dtype)


def check_interpolation(how: str) -> None:
    """Refuse an unknown interpolation."""
    if how not in ("linear", "spherical"):
        raise ValueError(f'interpolation must be "linear" or "spherical". Got {how!r}.')


def interpolate_(
    model: nn.Module, a: nn.Module, b: nn.Module, shares: Mapping[str, float], how: Interpolation
) -> nn.Module:
    """Overwrite tensors by the points between two networks, each at its share of ``b``; statistics go along a line."""
    ours, theirs = tensors_of(a), tensors_of(b)
    ways = {name: how for name, _ in a.named_parameters(remove_duplicate=False)}
    write(model, {n: between(ours[n], theirs[n], share, ways.get(n, "linear")) for n, share in shares.items()})
    return follow_(model, [a, b])


def _on_sphere(x: Tensor, y: Tensor, ratio: float) -> tuple[float, float]:
    """Both shares. The angle is Kahan's, accurate near 0 and near a half turn, where a cosine tells little."""
    u, v = (z.detach().to(torch.float32 if z.device.type == "mps" else torch.float64, copy=True) for z in (x, y))
    norms = u.norm(), v.norm()
    if not all(norms):
        return 1 - ratio, ratio
    u, v = u.div_(norms[0]), v.div_(norms[1])
    angle = 2 * atan2(float((u - v).norm()), float(u.add_(v).norm()))
    if sin(angle) < _PARALLEL:
        return 1 - ratio, ratio
    return sin((1 - ratio) * angle) / sin(angle), sin(ratio * angle) / sin(angle)


class Aligned(Protocol):
    """Anything that brings ``b`` into the basis of ``a``: an ``Alignment``, or a ``Transport``."""

    def apply(self, b: nn.Module) -> nn.Module:
        """A copy of ``b`` in the basis of ``a``."""
        ...


@in_usual_mode
def merge(
    a: nn.Module,
    b: nn.Module,
    alignment: Aligned | None,
    ratio: float | Mapping[str, float] = 0.5,
    repair: Repair = True,
    *,
    loader: Iterable[Any] | None = None,
    interpolation: Interpolation = "linear",
    layers: str | Sequence[str] | None = None,
    spaces: str | Sequence[str] | None = None,
) -> nn.Module:
    """Merge two networks of one architecture into one of the same size.

    ``b`` is brought into the basis of ``a``, then every weight and every statistic becomes a point between the two. The
    average of many channels varies less than each of them, so the merged network needs its statistics repaired on data:
    batch norms are measured anew, and networks without them go through REPAIR.

    Args:
        a: One network. Both are left unchanged.
        b: The other network.
        alignment: Result of ``align(a, b, ...)``; ``None`` if both are in one basis already.
        ratio: Share of ``b``, from 0 to 1; or shares by beginnings of tensor names, of which the longest counts;
            tensors that none fits stay those of ``a``.
        repair: ``True`` for what fits the network: ``"recalibrate"`` if it has batch norms, else ``"repair"`` if a
            loader is given. ``"rescale"`` corrects spreads only, ``False`` nothing. REPAIR changes only the layers
            whose weights are merged, each by its own ratio.
        loader: Batches of training inputs for the repair; labels are not used.
        interpolation: ``"linear"``, or ``"spherical"`` for parameters; statistics always go along a line.
        layers: Merge only tensors under these names, or matching these patterns (``"layer1"``, ``"*.mlp.*"``); the
            others stay those of ``a``.
        spaces: Merge only tensors that carry these spaces of the alignment's symmetry.

    Returns:
        A new network, in evaluation mode, otherwise a copy of ``a``, or of ``alignment.a`` if gains were folded.

    Raises:
        ValueError: If the architectures differ, weights are not finite, ratios lie outside 0 to 1, names fit nothing,
            the interpolation is unknown, repair needs data that was not given, or ``a`` and ``b`` are the wrong way
            round for the alignment.

    Examples:
        >>> import torch
        >>> a, b = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> merged = merge(a, b, None, ratio=0.25)
        >>> torch.allclose(merged.weight, 0.75 * a.weight + 0.25 * b.weight)
        True
    """  # noqa: DOC502 - raised by what it calls
    for name, model in (("a", a), ("b", b)):
        check_module(model, name)
    check_interpolation(interpolation)
    how = check_repair(a, repair, loader)
    a, twin = (a, b) if alignment is None else in_basis(a, b, alignment)
    check_matching(a, twin)
    sym = getattr(alignment, "symmetry", None)
    ratios = _ratios(a, ratio, layers, spaces, sym)
    merged = copied(a).eval()
    forget(merged, () if sym is None else sym.caches)
    interpolate_(merged, a, twin, ratios, interpolation)
    shares = {name.removesuffix(".weight"): (1 - share, share) for name, share in ratios.items() if share}
    return mend_(merged, [a, twin], shares, how, loader)


@in_usual_mode
def merge_many(
    models: Sequence[nn.Module],
    example_inputs: Any,
    method: str | Solver = "weights",
    *,
    repair: Repair = True,
    loader: Iterable[Any] | None = None,
    sweeps: int = 10,
    seed: int = 0,
    kinds: Collection[str] = ("permutation", "sign", "linear"),
    progress: bool | None = None,
) -> nn.Module:
    """Merge several networks into one: bring them into one basis, average, repair.

    Args:
        models: At least two networks of one architecture. They are left as they are.
        example_inputs: See ``align``.
        method: How to align, see ``align``.
        repair: See ``merge``.
        loader: Batches of training inputs for the repair, and for methods that look at data.
        sweeps: Largest number of sweeps through the networks.
        seed: The same seed gives the same result.
        kinds: Kinds of elements to search, see ``align``.
        progress: Whether to show progress.

    Raises:
        ValueError: If there are fewer than two networks, or as for ``merge`` and ``gather``.

    Examples:
        >>> import torch
        >>> models = [nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)]
        >>> merged = merge_many(models, torch.zeros(2, 3))
        >>> merged(torch.zeros(1, 3)).shape
        torch.Size([1, 2])
    """
    if len(models) < 2:
        raise ValueError(f"models must be at least two. Got {len(models)}.")
    check_repair(models[0], repair, loader)
    found = gather(
        models, example_inputs, method, loader=loader, sweeps=sweeps, seed=seed, kinds=kinds, progress=progress
    )
    return merge_moved(found.apply(models), repair, loader)


def merge_moved(moved: Sequence[nn.Module], repair: Repair = True, loader: Iterable[Any] | None = None) -> nn.Module:
    """Merge networks that are in one basis: average, then repair as ``merge`` does."""
    how = check_repair(moved[0], repair, loader)
    shares = {name: [1 / len(moved)] * len(moved) for name, _ in moved[0].named_modules()}
    return mend_(average(moved).eval(), moved, shares, how, loader)


def average(models: Sequence[nn.Module]) -> nn.Module:
    """The mean of the weights and statistics of several networks, as a copy of the first."""
    return follow_(write(copied(models[0]), mean_weights([tensors_of(model) for model in models])), models)


def in_basis(a: nn.Module, b: nn.Module, alignment: Aligned) -> tuple[nn.Module, nn.Module]:
    """The network ``a`` in the gauge of an alignment, itself if it already is, and a copy of ``b`` in its basis.

    Raises:
        TypeError: If ``alignment`` is not one.
        ValueError: If the alignment brings ``a`` into the basis of ``b``; to find out, tensors are moved one at a time.
    """
    if not isinstance(alignment, Alignment):
        if not hasattr(alignment, "apply"):
            raise TypeError(
                f"alignment must be what align(a, b, ...) returned, or None. Got {alignment!r}. A method is named to "
                "align: merge(a, b, align(a, b, example, method=...))."
            )
        return a, alignment.apply(b)
    a, b = alignment.folded(a), alignment.folded(b)
    ours, theirs, sym, g = tensors_of(a), tensors_of(b), alignment.symmetry, alignment.transformation
    there, back = 1 - distance(ours, sym.act(g, theirs)) ** 2, 1 - distance(sym.act(g, ours), theirs) ** 2
    if back > _SURELY * there + _SHARE:
        raise ValueError(
            "alignment must bring b into the basis of a, as align(a, b, ...) finds it. Got one that brings a into "
            f"that of b (it explains {back:.0%} of the weights this way round, {there:.0%} as given): swap a and b."
        )
    return a, sym.act(g, b)


def mend_(
    merged: nn.Module,
    parents: Sequence[nn.Module],
    shares: Mapping[str, Sequence[float]],
    how: str | None,
    loader: Iterable[Any] | None,
) -> nn.Module:
    """Repair a merged network in place as ``check_repair`` decided, by the shares of its parents in every module."""
    if how is None or loader is None:
        return merged
    if how == "recalibrate":
        return recalibrate_(merged, loader)
    return repaired_(merged, parents, shares, loader, shift=how == "repair")


def check_repair(model: nn.Module, repair: Repair, loader: Iterable[Any] | None) -> str | None:
    """The repair that a name means for this network, or ``None`` for none; checked before long work."""
    norms = bool(batch_norms(model))
    if repair is False:
        return None
    if repair is True:
        if norms and loader is None:
            raise ValueError(
                "loader must be given to repair a network with batch norms: their statistics fit neither parent's once "
                "weights are averaged. Got none. Pass batches of training inputs, or repair=False."
            )
        return "recalibrate" if norms else "repair" if loader is not None else None
    if repair not in _REPAIRS:
        raise ValueError(f"repair must be True, False or one of {', '.join(_REPAIRS)}. Got {repair!r}.")
    if loader is None:
        raise ValueError(f"loader must be given for repair={repair!r}. Got none. Pass batches of training inputs.")
    if repair == "recalibrate" and not norms:
        raise ValueError(
            "repair must be 'repair' or 'rescale' for a network without batch norms. Got 'recalibrate', which has "
            "nothing to measure here."
        )
    if repair != "recalibrate" and norms:
        raise ValueError(
            f"repair must be True or 'recalibrate' for a network with batch norms. Got {repair!r}: they would undo it, "
            "since their statistics are of the network before. On the command line, leave out --repair."
        )
    return repair


def _ratios(
    model: nn.Module,
    ratio: float | Mapping[str, float],
    layers: str | Sequence[str] | None,
    spaces: str | Sequence[str] | None,
    sym: Symmetry | None,
) -> dict[str, float]:
    """The share of ``b`` in every tensor that is to change."""
    names = list(tensors_of(model))
    by_start = ratio if isinstance(ratio, Mapping) else {"": ratio}
    for start, share in by_start.items():
        if not 0 <= share <= 1:
            raise ValueError(f"ratio must lie between 0 and 1. Got {share}" + (f" for {start!r}." if start else "."))
        if not any(_under(name, start) for name in names):
            raise ValueError(f"ratio must name the beginning of tensor names. Got {start!r}, which fits none.")
    chosen = set(names)
    if layers is not None:
        chosen &= _chosen_by_name(names, [layers] if isinstance(layers, str) else list(layers))
    if spaces is not None:
        chosen &= _chosen_by_space(sym, [spaces] if isinstance(spaces, str) else list(spaces))
    found = {}
    for name in names:
        starts = [start for start in by_start if _under(name, start)]
        if name in chosen and starts:
            found[name] = by_start[max(starts, key=len)]
    one_tensor: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = one_tensor.setdefault(id(parameter), name)
        if name in found and found[name] != found.get(first, found[name]):
            raise ValueError(
                f"ratio must be one number for tied names. Got {found[first]} for {first!r} and {found[name]} for "
                f"{name!r}, which are one tensor."
            )
    return found


def _under(name: str, start: str) -> bool:
    return not start or name == start or name.startswith(start.rstrip(".") + ".")


def _chosen_by_name(names: Sequence[str], wanted: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for want in wanted:
        here = {name for name in names if _under(name, want) or fnmatchcase(name, want)}
        if not here or not want:
            raise ValueError(
                f"layers must be beginnings of tensor names or patterns. Got {want!r}, which fits none of "
                f"{', '.join(names[:4])}, ..."
            )
        found |= here
    return found


def _chosen_by_space(sym: Symmetry | None, wanted: Sequence[str]) -> set[str]:
    if sym is None:
        raise ValueError("alignment must be given to merge by spaces. Got none. Merge by layers= instead.")
    for want in wanted:
        sym.space(want)
    carrying = {name for name, layout in sym.layouts.items() if layout.spaces & set(wanted)}
    return carrying | {alias for alias, name in sym.aliases.items() if name in carrying}
