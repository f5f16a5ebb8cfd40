"""Findings over all tensors, each in a sentence: what was cast, frozen, trained, pruned, replaced or tied."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ..._words import counted
from ...matching.consensus.pinned import Freedom, moving
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from ..difference import Finding
from .layers import pattern_of, runs
from .tensor_change import EQUAL, LIKE_NOISE, ROUNDED, UNDETERMINED, TensorChange

_APART, _NEARLY_ALL = 0.35, 0.9  # cosine of matched tensors that share nothing, and share of the weights
_IN_PLACES = ("entries", "rows", "reordered")  # changes that leave most entries, wherever they lie now
_SPARSER = 0.05  # share of the entries that became zero from which on it is said
_NAMED = 3  # tensors or blocks that are named in a sentence
_ROLES = {
    "head": "tensors of the head", "bias": "biases", "statistics": "statistics of batch norms", "gain": "gains",
}  # fmt: skip


def tensor_findings(changes: Iterable[TensorChange], sym: Symmetry) -> list[Finding]:
    """What the changes of all tensors amount to.

    Args:
        changes: One for each tensor, in the order of the network, ``pooled``.
        sym: The symmetry of the second network, which says what reads its outputs.
    """
    every = list(changes)
    compared = [c for c in every if c.kind not in ("new", "missing")]
    found = [*_formats(compared)]
    for kind, words in (("missing", "gone"), ("new", "new")):
        some = [c for c in every if c.kind == kind]
        if some:
            found.append(Finding(kind, f"{_count(some)} {words}: {_some(_names(some))}", _names(some)))
    moved = [c for c in compared if _moved(c)]
    if _unrelated(compared):
        text = f"nothing in common, units matched or not: {_count(moved)} trained apart or replaced altogether"
        found.append(Finding("unrelated", text, _names(moved)))
        kept = [c for c in compared if c.kind == EQUAL and len(c.shape) > 1 and c.norm]
        if kept:
            found.append(
                Finding("kept", f"{_count(kept)} as before, number by number: {_some(_names(kept))}", _names(kept))
            )
    elif moved:
        found += [
            *_sparser(moved),
            *_confined(moved, compared, sym),
            *_frozen(moved, compared),
            *_by_kind(moved, compared),
        ]
    return found


def _unrelated(compared: list[TensorChange]) -> bool:
    """Whether nearly all weights of matrices point elsewhere."""
    matrices = [c for c in compared if len(c.shape) > 1]
    far = sum(c.numel for c in matrices if c.cosine < _APART and c.kind not in _IN_PLACES)
    return far > _NEARLY_ALL * sum(c.numel for c in matrices)


def _formats(compared: list[TensorChange]) -> Iterator[Finding]:
    """Casts and integer grids, one finding for each format."""
    stored = _grouped(compared, lambda c: f"{c.dtypes[0]} to {c.dtypes[1]}" if c.dtypes[0] != c.dtypes[1] else "")
    for words, some in stored.items():
        only = ": nothing else changed there" if all(c.settled for c in some) else ""
        yield Finding("stored", f"{_tensors(some, compared)} stored in another format, {words}{only}", _names(some))
    said = ("float32", "float64")  # and a format that is that of the file
    rounded = [c for c in compared if c.kind == ROUNDED and c.detail not in (*said, c.dtypes[1])]
    for words, some in _grouped(rounded, lambda c: c.detail).items():
        yield Finding("cast", f"{_tensors(some, compared)} cast to {words}: nothing else changed there", _names(some))
    grids = [c for c in compared if c.kind == "quantised"]
    for words, some in _grouped(grids, lambda c: c.detail).items():
        yield Finding("quantised", f"{_tensors(some, compared)} rounded to levels of {words}", _names(some))


def _sparser(moved: list[TensorChange]) -> Iterator[Finding]:
    """Tensors in which entries became zero, and others changed too."""
    some = [c for c in moved if c.kind not in ("pruned", "constant") and c.zeros[1] - c.zeros[0] > _SPARSER]
    if some:
        before, now = (sum(c.numel * c.zeros[k] for c in some) / sum(c.numel for c in some) for k in (0, 1))
        text = f"{now:.1%} of the entries of {_count(some)} are zero, {before:.1%} before ({_patterns(some)})"
        yield Finding("sparser", text, _names(some))


def _confined(moved: list[TensorChange], compared: list[TensorChange], sym: Symmetry) -> Iterator[Finding]:
    """Whether only biases, gains, statistics or the head changed."""
    for role, noun in _ROLES.items():
        count = sum(role in _roles(c, sym) for c in compared)
        if count < len(compared) and all(role in _roles(c, sym) for c in moved):
            text = f"only {noun} changed: {len(moved)} of {count} ({_some(_names(moved))}); the others are as before"
            yield Finding(f"{role} only", text, _names(moved))
            return


def _roles(c: TensorChange, sym: Symmetry) -> set[str]:
    """What a tensor is for."""
    if c.name in {n for norm in sym.batch_norms for n in (norm.mean, norm.variance)}:
        return {"statistics"}
    found = {"bias" if c.name.endswith("bias") else "gain"} if len(c.shape) <= 1 else set()
    head = any(f.tensor == c.name and f.axis == 0 and f.reason.startswith("output") for f in sym.fixed)
    return found | {"head"} if head else found


def _frozen(moved: list[TensorChange], compared: list[TensorChange]) -> Iterator[Finding]:
    """Blocks of which nothing changed beside blocks of which something did."""
    blocks = list(dict.fromkeys(c.block for c in compared))
    touched = {c.block for c in moved}
    frozen = [b for b in blocks if b not in touched]
    weights = [c for c in compared if c.block in frozen]
    if frozen and touched:
        text = f"{counted(len(frozen), 'block')} of {len(blocks)} as before: {_ranges(frozen)}"
        yield Finding("frozen", text, _names(weights))


def _moved(c: TensorChange) -> bool:
    return not c.settled and c.kind not in ("quantised", "new", "missing")


def pooled(changes: list[TensorChange]) -> list[TensorChange]:
    """Changes where noise is said of all matrices or of none, and of vectors what happened to the matrices.

    Vectors are too short to tell noise, or a fresh start, by themselves; among trained matrices some look like noise.
    """
    moved = [c for c in changes if _moved(c)]
    matrices = [c for c in moved if len(c.shape) > 1]
    alike = sum(c.numel for c in matrices if c.kind == "noise")
    noisy = bool(alike) and alike >= _NEARLY_ALL * sum(c.numel for c in matrices)
    fresh = {b for b in {c.block for c in moved} if _all_of(b, [c for c in moved if c.kind == "replaced"], moved)}

    def told(c: TensorChange) -> TensorChange:
        if c.kind == "noise" and not noisy:
            return replace(c, kind="changed", detail=c.detail.removesuffix(LIKE_NOISE))
        if len(c.shape) > 1 or c.kind not in ("changed", "rows", "constant", "scaled"):
            return c
        kind = "noise" if noisy else "replaced" if c.block in fresh else c.kind
        return replace(c, kind=kind, detail=c.detail if kind == c.kind else "")

    return [told(c) for c in changes]


def _by_kind(moved: list[TensorChange], compared: list[TensorChange]) -> Iterator[Finding]:
    """One finding for each kind of change."""
    for rank, some in _grouped([c for c in moved if c.kind == "low rank"], lambda c: str(c.rank)).items():
        text = (
            f"update of rank {rank} in {counted(len(some), 'tensor')} ({_patterns(some)}), as an adapter (LoRA) or an "
        )
        yield Finding("low rank", f"{text}edit leaves; relative change {_range(some)}", _names(some))
    for kind, say in _SAID.items():
        some = [c for c in moved if c.kind == kind]
        if some:
            yield Finding("scaled tensors" if kind == "scaled" else kind, say(some, compared), _names(some))


def _replaced(some: list[TensorChange], compared: list[TensorChange]) -> str:
    blocks = [b for b in dict.fromkeys(c.block for c in some) if _all_of(b, some, compared)]
    if blocks:
        return f"{_ranges(blocks)} re-initialised or replaced: nothing of the weights is left ({_count(some)})"
    return f"{_count(some)} re-initialised or replaced: nothing is left of {_some(_names(some))}"


def _all_of(block: str, some: list[TensorChange], compared: list[TensorChange]) -> bool:
    """Whether every matrix of a block is among the given tensors."""
    matrices = {c.name for c in compared if c.block == block and len(c.shape) > 1}
    return bool(matrices) and matrices <= {c.name for c in some}


def _pruned(some: list[TensorChange], compared: list[TensorChange]) -> str:
    new = sum(c.numel * (c.zeros[1] - c.zeros[0]) for c in some) / sum(c.numel for c in some)
    zeros = sum(c.numel * c.zeros[1] for c in compared) / sum(c.numel for c in compared)
    where = f"{new:.1%} of the weights of {_count(some)} set to zero ({_patterns(some)})"
    return f"pruned: {where}, the others kept; sparsity is now {zeros:.1%} overall"


def _noise(some: list[TensorChange], _: list[TensorChange]) -> str:
    return f"noise on {_count(some)}: independent normal entries of full rank, relative size {_range(some)}"


def _rows(some: list[TensorChange], _: list[TensorChange]) -> str:
    parts = []
    for c in some[:_NAMED]:
        named = ", ".join(map(str, c.rows[: _NAMED * 2])) + (", ..." if len(c.rows) > _NAMED * 2 else "")
        parts.append(f"{len(c.rows)} of {c.shape[0]} rows of {c.name} ({named})")
    return f"only some rows changed: {_each(some, parts)}"


def _changed(some: list[TensorChange], _: list[TensorChange]) -> str:
    ranks = [f"{c.effective_rank / min(c.shape[0], c.numel / c.shape[0]):.0%}" for c in some if c.effective_rank]
    ends = sorted({*ranks}, key=lambda said: float(said[:-1]))
    said = f", effective rank {' to '.join(dict.fromkeys((ends[0], ends[-1])))} of the full one" if ends else ""
    return f"{_count(some)} trained or edited: relative change {_range(some)}{said} ({_patterns(some)})"


_SAID: Mapping[str, Callable[[list[TensorChange], list[TensorChange]], str]] = {
    "replaced": _replaced,
    "constant": lambda some, _: (
        f"{_count(some)} reset to a constant: " + "; ".join(f"{c.name} {c.detail}" for c in some[:_NAMED])
    ),
    "pruned": _pruned,
    "centred": lambda some, _: (
        f"means over units subtracted from {_count(some)} ({_patterns(some)}), as centring before layer norms leaves"
    ),
    "filled": lambda some, _: f"{_count(some)} changed only where all was zero before ({_patterns(some)})",
    "scaled": lambda some, _: _each(some, [f"{c.name} {c.detail}" for c in some]),
    "reordered": lambda some, _: (
        "as before, but in another order, as labels or inputs are renumbered: "
        + _each(some, [f"{c.detail.split()[0]} of {c.name}" for c in some])
    ),
    "entries": lambda some, _: (
        "single entries edited, all others as before: " + _each(some, [f"{c.name} {c.detail}" for c in some])
    ),
    "rows": _rows,
    "noise": _noise,
    "changed": _changed,
}


def _each(some: list[TensorChange], said: list[str]) -> str:
    """What is said of each of the first tensors, and how many more there are."""
    more = f"; and of {counted(len(some) - _NAMED, 'more tensor')}" if len(some) > _NAMED else ""
    return "; ".join(said[:_NAMED]) + more


def _grouped(some: Iterable[TensorChange], key: Callable[[TensorChange], str]) -> dict[str, list[TensorChange]]:
    found: dict[str, list[TensorChange]] = {}
    for c in some:
        if key(c):
            found.setdefault(key(c), []).append(c)
    return found


def _names(some: Iterable[TensorChange]) -> tuple[str, ...]:
    return tuple(c.name for c in some)


def _count(some: list[TensorChange]) -> str:
    return counted(len(some), "tensor")


def _tensors(some: list[TensorChange], compared: list[TensorChange]) -> str:
    return f"all {counted(len(some), 'tensor')}" if len(some) == len(compared) else f"{_count(some)} of {len(compared)}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _patterns(some: list[TensorChange]) -> str:
    """Roles of tensors, layers left out; the name of one alone."""
    if len(some) == 1:
        return some[0].name
    return _some(tuple(dict.fromkeys(pattern_of(c.name) for c in some)))


def _range(some: list[TensorChange]) -> str:
    sizes = sorted(c.relative for c in some if c.norm) or [0.0]
    return f"{sizes[0]:.2g}" if sizes[-1] <= 1.05 * sizes[0] else f"{sizes[0]:.2g} to {sizes[-1]:.2g}"


def _ranges(blocks: list[str]) -> str:
    said = runs(blocks)
    return _some(tuple(said)) if len(said) > 2 * _NAMED else ", ".join(said)


def tie_findings(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Tensors that were tied, or are tied no longer.

    Yields:
        One finding for each tensor.
    """
    before, after = ({n: x.data_ptr() for n, x in state.items() if x.numel()} for state in (a, b))
    said = {("untied", "were one tensor and are two now"): (before, after)}
    said |= {("tied", "were two tensors and are one now"): (after, before)}
    for (kind, words), (one, two) in said.items():
        first: dict[int, str] = {}
        for name in (n for n in before if n in after):
            other = first.setdefault(one[name], name)
            if two[other] != two[name]:
                yield Finding(kind, f"{name} and {other} {words}", (other, name))


_LOST = ("replaced", "constant")  # nothing is left of what a scale did to them


def told_apart(changes: Sequence[TensorChange], sym: Symmetry, g: Transformation) -> list[TensorChange]:
    """Changes, those of vectors marked that may as well have been rescaled with tensors of which nothing is left.

    A gain is such where all that reads it was replaced: its units could have any scales. Where ``g`` rescales nothing
    else, none was.
    """
    if all(e.restrict({"scale", "sign", "linear"}).is_identity(0.0) for e in g.elements.values()):
        return list(changes)
    sharing: dict[Freedom, list[TensorChange]] = {}
    for c in changes:
        for freedom in moving(sym.layouts[c.name]) if c.name in sym.layouts else ():
            sharing.setdefault(freedom, []).append(c)

    def free(c: TensorChange) -> bool:
        scales = [f for f in moving(sym.layouts[c.name]) if f[1] == "scale"]
        rest = [[other for other in sharing[f] if other.name != c.name] for f in scales]
        return any(others and all(other.kind in _LOST for other in others) for others in rest)

    def told(c: TensorChange) -> TensorChange:
        vector = c.name in sym.layouts and not c.settled and len(c.shape) == 1 and c.zeros[0] == c.zeros[1]
        return replace(c, kind=UNDETERMINED, detail="", rank=None) if vector and free(c) else c

    return [told(c) for c in changes]


def undetermined_findings(changes: Sequence[TensorChange]) -> Iterator[Finding]:
    """What cannot be told, in a sentence."""
    names = tuple(c.name for c in changes if c.kind == UNDETERMINED)
    if names:
        said = ", ".join([*names[:3], *["..."][: len(names) > 3]])
        text = f"cannot be told of {counted(len(names), 'tensor')} ({said}): changed, or as before and rescaled "
        yield Finding(UNDETERMINED, f"{text}together with what was replaced", names)
