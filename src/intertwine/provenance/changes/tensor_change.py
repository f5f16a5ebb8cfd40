"""The change of one tensor: a cast, an integer grid, pruning, an update and its rank."""

from dataclasses import dataclass, replace
from math import inf, isfinite, prod
from typing import Any

import torch
from torch import Tensor

from ...matching.judgement.deviation import constant
from ...matching.judgement.grids import SPARSE, dtype_name, grid, two_of_four

_EDGE = 3.0  # times the expected largest singular value of rounding of this size
_ROUNDED = 0.3  # RMS rounding error, in units of the format's epsilon
_LOW = 4  # a low rank is at most the full rank divided by this
_LEAST = 1e-7  # relative to the largest singular value: roots of eigenvalues resolve no smaller ones
_DENSE = 1024  # largest smaller side for which all singular values are computed
_PROBES = 96
_SMALL = 16  # smallest smaller side for which the shape of a spectrum is informative
_LIKE_NOISE = 0.02  # relative deviation of the effective rank from that of independent entries, beyond chance
_KURTOSIS = 0.05  # excess kurtosis of the entries, beyond chance
_CHANCE = 4.0  # standard deviations of an estimate
_CENTRED = 0.2  # mean over root mean square
RESIZED = ("narrowed", "widened")  # kinds of tensors of which units alone explain the change


def update_rank(d: Tensor, weights: Tensor, eps: float) -> tuple[int | None, float | None, int, bool]:
    """The rank of an update that was added to weights of a given format.

    Args:
        d: The update ``(m, ...)``; the axes after the first count as one, of ``n`` entries.
        weights: The weights after the update, whose rounding hides small singular values.
        eps: Relative spacing of numbers in their format.

    Returns:
        The number of singular values above rounding, if it is at most a quarter of ``min(m, n)``; the effective rank
        ``(Σ s²)² / Σ s⁴``, ``None`` for vectors; ``min(m, n)``; and whether effective rank, ``m n / (m + n + 1)``, and
        tails are those of independent normal entries.
    """
    if d.ndim < 2 or min(d.shape[0], prod(d.shape[1:])) < 2:
        return None, None, 1, False
    matrix = d.flatten(1)
    matrix = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT).double()
    m, n = matrix.shape
    rounding = _ROUNDED * eps * float(weights.square().mean(dtype=torch.float64)) ** 0.5
    edge = _EDGE * rounding * (m**0.5 + n**0.5)
    values, effective = _spectrum(matrix)
    rank = int((values > max(edge, _LEAST * float(values.max()))).sum())
    low = (len(values) == m or rank < len(values)) and 0 < rank <= m // _LOW
    alike = m >= _SMALL and abs(effective * (m + n + 1) / (m * n) - 1) < _LIKE_NOISE + _CHANCE / (m * n) ** 0.5
    return rank if low else None, effective, m, alike and _normal(d)


def _spectrum(matrix: Tensor) -> tuple[Tensor, float]:
    """All singular values or the largest ones, and the effective rank."""
    if matrix.shape[0] <= _DENSE:
        values = torch.linalg.eigvalsh(matrix @ matrix.mT).clamp_min(0).sqrt().flip(0)
        return values, float(values.square().sum() ** 2 / values.pow(4).sum().clamp_min(1e-300))
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(matrix.shape[1], _PROBES, generator=generator, dtype=matrix.dtype)
    seen = matrix @ probes
    basis = torch.linalg.qr(seen).Q
    values = torch.linalg.svdvals(basis.mT @ matrix)
    fourth = float((matrix.mT @ seen).square().sum()) / _PROBES  # E |D^T D z|^2 is the sum of fourth powers
    return values, float(matrix.square().sum() ** 2) / max(fourth, 1e-300)


def _normal(d: Tensor) -> bool:
    """Whether the entries have the tails of a normal distribution around zero."""
    x = d.flatten().double()
    square = float(x.square().mean())
    if x.numel() < _SMALL**2 or not square:
        return False
    near = _KURTOSIS + _CHANCE * (24 / x.numel()) ** 0.5
    return abs(float(x.pow(4).mean()) / square**2 - 3) < near and abs(float(x.mean())) < _CENTRED * square**0.5


EQUAL = "equal"
ROUNDED = "rounded"
REWRITTEN = "rewritten"
UNDETERMINED = "undetermined"
COUNTED = "counter"
COUNTER = "num_batches_tracked"  # end of the names of batch norms' counters
LIKE_NOISE = ", as independent noise has"

_HALVES = (torch.bfloat16, torch.float16)
_MOVED = 1e-5  # relative deviation that scaling leaves in single precision
_SHARE = 0.999  # share of entries judged by relative deviation; the rest by the tensor's size
_ULP = 2.0**-24  # relative rounding of a number in single precision
_TINY = 1e-3  # times the RMS of a tensor: entries that cancel to less deviate more
_FEW_ENTRIES = 0.01  # largest share of entries for a change of single entries
_FEW_ROWS = 0.25  # largest share of rows for a change of some rows
_UNRELATED = 0.1  # cosine below which nothing is left of a vector
_MATCHED = 0.35  # the same for a matrix: small ones come as close by chance
_FAR = 4.0  # standard deviations of unrelated tensors' cosine: with a shared start it is larger
_NAMED = 1000  # most rows listed
_SHOWN = 3  # most entries named


@dataclass(frozen=True)
class TensorChange:
    """The change of one tensor, once the first network is brought into the basis of the second."""

    name: str  # Its name in the second network
    source: str  # Origin of its values in the first: a name, several names, or a rearrangement
    block: str  # Its block in the network
    shape: tuple[int, ...]  # Its shape
    dtypes: tuple[str, str]  # Number formats before and after
    # ``"equal"``, ``"rounded"``, ``"rewritten"`` (another batch norm, the same affine map), ``"quantised"``,
    # ``"pruned"``, ``"filled"`` (only zeros changed), ``"narrowed"``, ``"widened"`` (units removed or added),
    # ``"centred"``, ``"scaled"``, ``"reordered"``, ``"entries"``, ``"rows"``, ``"constant"``, ``"replaced"``,
    # ``"low rank"``, ``"noise"``, ``"changed"``, ``"new"``, ``"missing"``
    # ``"counter"`` (of batches, which no output in evaluation depends on, and which old checkpoints lack)
    # or ``"undetermined"`` (changed, or rescaled together with replaced tensors: undecidable)
    kind: str
    detail: str = ""  # Details in words, such as the format to which values were rounded
    relative: float = 0.0  # ``|b - a| / |a|``; infinity for a tensor that only one network has
    norm: float = 0.0  # ``|a|``
    cosine: float = 1.0  # Cosine of the angle between both
    # Rank of the update as far as it exceeds rounding; ``None`` if full or not computed
    rank: int | None = None
    effective_rank: float | None = None  # ``(Σ s²)² / Σ s⁴`` of the update's singular values ``s``
    changed: float = 0.0  # Share of entries that are not equal
    zeros: tuple[float, float] = (0.0, 0.0)  # Shares of entries that are zero, before and after
    rows: tuple[int, ...] = ()  # Rows that changed, if only some did

    @property
    def settled(self) -> bool:
        """Whether nothing happened, only rounding to a floating-point format, or nothing that can be determined."""
        return self.kind in (EQUAL, ROUNDED, REWRITTEN, UNDETERMINED, COUNTED)

    @property
    def numel(self) -> int:
        """Number of entries."""
        return prod(self.shape)


def tensor_change(name: str, source: str, block: str, a: Tensor, b: Tensor, exact: bool) -> TensorChange:
    """The change of one tensor from before (in the basis of the second network) to after.

    ``exact`` says that ``a`` holds the first network's numbers unchanged, neither scaled nor mixed.
    """
    dtypes = dtype_name(a.dtype), dtype_name(b.dtype)
    real = a.is_floating_point() and b.is_floating_point()
    wide = torch.float32 if real and torch.float64 not in (a.dtype, b.dtype) else torch.float64
    x, y = a.detach().to("cpu", wide), b.detach().to("cpu", wide)

    def made(kind: str, detail: str = "", **more: Any) -> TensorChange:
        return TensorChange(name, source, block, tuple(b.shape), dtypes, kind, detail, **more)

    size = lambda t: float(torch.linalg.vector_norm(t, dtype=torch.float64))
    if not isfinite(size(x) + size(y)):  # infinities that both hold, as of masks, have no size
        same = (x == y) & x.isinf()
        x, y = x.masked_fill(same, 0.0), y.masked_fill(same, 0.0)
    before = size(x)
    if torch.equal(x, y):
        return made(EQUAL, norm=before)
    gap = y - x
    after, moved = size(y), size(gap)
    if not isfinite(moved):
        changed = float((x != y).double().mean())
        return made("changed", "infinities at other places", norm=inf, relative=inf, cosine=0.0, changed=changed)
    facts: dict[str, Any] = {
        "norm": before,
        "relative": moved / before if before else inf,
        "cosine": float((x * y).sum(dtype=torch.float64)) / (before * after) if before and after else 0.0,
        "changed": float((gap != 0).double().mean()),
        "zeros": tuple(float((t == 0).double().mean()) for t in (x, y)),
    }
    if name.endswith(COUNTER):  # one number; of networks in one tensor several
        return made(COUNTED, " to ".join(str(int(t.amax())) for t in (x, y)), **facts)
    if not real:  # every entry counts: rounding cannot turn one index into another
        return made("changed", "whole numbers", **facts)
    rounding = _rounding(x, y, b.dtype)
    if rounding:
        return made(ROUNDED, rounding, **facts)
    kind, detail, rows = _whole(x, y, gap, facts["cosine"])
    if kind in ("quantised", "pruned", "filled", "centred", "scaled", "constant", "reordered"):
        return made(kind, detail, **facts)
    eps = max(float(torch.finfo(d).eps) for d in (a.dtype, b.dtype))
    rank, effective, full, noise = update_rank(gap, y, eps if exact else max(eps, _MOVED))
    if kind == "changed" and rank is not None:
        kind, detail = "low rank", f"rank {rank} of {full}"
    elif kind == "changed" and effective is not None:
        detail = f"effective rank {effective:.1f} of {full}"
        along = abs(float((gap * x).sum(dtype=torch.float64))) / max(moved * before, 1e-300)
        if noise and along < _UNRELATED / 2 + 3 / x.numel() ** 0.5:  # noise does not depend on the weights
            kind, detail = "noise", f"{detail}{LIKE_NOISE}"
    return made(kind, detail, rows=rows, rank=rank, effective_rank=effective, **facts)


def _rounding(x: Tensor, y: Tensor, dtype: torch.dtype) -> str:
    """The floating-point format whose rounding explains the change; empty if there is none."""
    apart, size = (y - x).abs(), float(torch.linalg.vector_norm(y, dtype=torch.float64)) / max(y.numel(), 1) ** 0.5
    ratio = (apart / y.abs().clamp_min(max(_TINY * size, torch.finfo(x.dtype).tiny))).flatten()
    within = float(ratio.kthvalue(min(int(_SHARE * len(ratio)) + 1, len(ratio))).values) if len(ratio) else 0.0

    def explained(error: float) -> bool:
        return within <= error and bool((apart <= error * y.abs().clamp_min(size)).all())

    if explained(_MOVED) or bool((apart <= _ULP * size).all()):  # small entries may be differences of large ones
        return "float32"
    told = constant(x) or not constant(y)  # in a coarse format, gains near one are all ones and reveal nothing
    for format_ in _HALVES:
        if told and torch.equal(x.to(format_).to(x.dtype), y):
            return dtype_name(format_)
    for format_ in _HALVES:
        holds = dtype == format_ or torch.equal(y.to(format_).to(y.dtype), y)
        if holds and not constant(y) and explained(torch.finfo(format_).eps):
            return dtype_name(format_)
    return ""


def resized(change: TensorChange, before: int, after: int) -> TensorChange:
    """The change of a tensor padded with zeros, named by its size if that explains it; entries before and after."""
    if change.kind not in ("pruned", "filled"):
        return change
    kind, words, zeros, entries = (
        ("narrowed", "are gone with units", change.zeros, after)
        if change.kind == "pruned"
        else ("widened", "came with units", change.zeros[::-1], before)
    )
    left = change.numel - entries
    if round((zeros[1] - zeros[0]) * change.numel) > left:
        return change  # other entries are zero too
    return replace(change, kind=kind, detail=f"{left / change.numel:.1%} of entries {words}, the others kept")


def _whole(x: Tensor, y: Tensor, gap: Tensor, cosine: float) -> tuple[str, str, tuple[int, ...]]:
    """The change as one of the whole tensor or of some rows; ``"changed"`` if it is neither."""
    if constant(y) and y.numel() > 1 and bool((y == y.flatten()[0]).all()):
        return "constant", f"all {float(y.flatten()[0]):g}", ()
    for dim, what in enumerate(("rows", "columns")[: y.ndim]):
        if _sorted(x, dim).equal(_sorted(y, dim)):
            return "reordered", f"{what} in another order", ()
    kept = gap.abs() <= _MOVED * y.abs()
    for kind, words, zero in (("pruned", "set to zero", y == 0), ("filled", "that were zero filled", x == 0)):
        if bool((kept | zero).all()):
            way = f" ({SPARSE})" if kind == "pruned" and two_of_four(zero) else ""
            return kind, f"{float((zero & ~kept).double().mean()):.1%} of entries {words}{way}, the others kept", ()
    for dim, what in enumerate(("rows", "columns")[: y.ndim]):
        if bool((gap + x.mean(dim, keepdim=True)).abs().le(_MOVED * y.abs().mean(dim, keepdim=True)).all()):
            return "centred", f"the mean over {what} subtracted", ()
    levels = grid(x, y)
    if levels:
        return "quantised", levels, ()
    if y.numel() > 2:
        factor = float((x * y).sum(dtype=torch.float64) / x.square().sum(dtype=torch.float64).clamp_min(1e-300))
        if factor and bool(((y - factor * x).abs() <= _MOVED * y.abs()).all()):
            return "scaled", f"multiplied by {factor:.6g}", ()
    other = gap.abs() > _MOVED * y.abs()
    count = int(other.sum())
    lines = max(int(other.flatten(1).any(k).sum()) for k in (0, 1)) if y.ndim > 1 else count
    if count <= max(1, _FEW_ENTRIES * y.numel()) and count <= 2 * lines:
        places = ", ".join(str(tuple(place)) for place in other.nonzero()[:_SHOWN].tolist())
        return "entries", f"{count:,} of {y.numel():,} entries: {places}{', ...' * (count > _SHOWN)}", ()
    if y.ndim > 1 and len(y) > 1:
        rows = (gap.flatten(1).abs().amax(1) > _MOVED * y.flatten(1).abs().amax(1)).nonzero().flatten()
        if 0 < len(rows) <= _FEW_ROWS * len(y):
            return "rows", f"{len(rows)} of {len(y)} rows", tuple(rows[:_NAMED].tolist())
    least = _UNRELATED if y.ndim < 2 else _MATCHED
    if cosine < min(least, _FAR / y.numel() ** 0.5) and y.numel() > 8:
        return "replaced", f"cosine {cosine:.2f}", ()
    return "changed", "", ()


def _sorted(x: Tensor, dim: int) -> Tensor:
    """Slices along an axis, sorted by their smallest entry."""
    rows = x.movedim(dim, 0).flatten(1) if x.ndim > 1 else x[:, None]
    return rows[rows.amin(1).argsort(stable=True)] if rows.numel() else rows
