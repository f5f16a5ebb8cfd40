"""Findings over all tensors, one sentence each: what was cast, frozen, trained, pruned, replaced or tied."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..._io.lazy import State
from ..._nested import by_key
from ..._words import counted, listed
from ...matching.element_fit.consensus import moving
from ...matching.judgement.grids import SPARSE
from ...symmetry import Symmetry, Transformation
from ..difference import Finding
from .element_words import missing_units
from .layers import pattern_of, runs
from .pairs import Pairs
from .tensor_change import COUNTED, EQUAL, LIKE_NOISE, REWRITTEN, ROUNDED, UNDETERMINED, TensorChange

_APART, _NEARLY_ALL = 0.35, 0.9  # cosine of matched tensors that share nothing, and share of the weights
_IN_PLACES = ("entries", "rows", "reordered")  # changes that leave most entries, wherever they lie now
_SPARSER = 0.05  # share of the entries that became zero from which on it is said
_NAMED = 3  # tensors or blocks that are named in a sentence
_ROLES = {
    "head": "tensors of the head", "bias": "biases", "statistics": "statistics of batch norms", "gain": "gains",
}  # fmt: skip

Some = list[TensorChange]
Said = Mapping[str, Callable[[Some, Some], str]]  # by kind what is said of such changes, and of all


def tensor_findings(every: Sequence[TensorChange], pairs: Pairs, g: Transformation) -> Iterator[Finding]:
    """What the changes of all tensors, ``pooled`` and ``told_apart``, amount to; ``g`` moves those before."""
    for kind, resized in (("pruned", "narrowed"), ("filled", "widened")):
        yield from missing_units(pairs, g, [c.name for c in every if c.kind in (kind, resized)], kind)
    compared = [c for c in every if c.kind not in ("new", "missing", COUNTED)]
    yield from _formats(compared)
    yield from _by_kind(every, compared, _ALONE)
    moved = [c for c in compared if _moved(c)]
    if _unrelated(compared):
        text = f"nothing in common, units matched or not: {_count(moved)} trained apart or replaced altogether"
        yield _finding("unrelated", text, moved)
        kept = [c for c in compared if c.kind == EQUAL and len(c.shape) > 1 and c.norm]
        if kept:
            yield _finding("kept", f"{_count(kept)} as before, number by number: {_some(kept)}", kept)
    elif moved:
        yield from _sparser(moved)
        yield from _confined(moved, compared, pairs.sym)
        yield from _frozen(moved, compared)
        yield from _low_rank(moved)
        yield from _by_kind(moved, compared, _CHANGED)
    yield from _by_kind(every, compared, _LEFT)


def _unrelated(compared: Some) -> bool:
    """Whether nearly all weights of matrices point elsewhere."""
    matrices = [c for c in compared if len(c.shape) > 1]
    far = sum(c.numel for c in matrices if c.cosine < _APART and c.kind not in _IN_PLACES)
    return far > _NEARLY_ALL * sum(c.numel for c in matrices)


def _formats(compared: Some) -> Iterator[Finding]:
    """Casts and integer grids, one finding for each format."""
    for words, some in _grouped(compared, lambda c: " to ".join(c.dtypes) if c.dtypes[0] != c.dtypes[1] else ""):
        only = ": nothing else changed there" if all(c.settled for c in some) else ""
        yield _finding("stored", f"{_tensors(some, compared)} stored in another format, {words}{only}", some)
    said = ("float32", "float64")  # and a format that is that of the file
    for words, some in _grouped(
        compared, lambda c: c.detail if c.kind == ROUNDED and c.detail not in (*said, c.dtypes[1]) else ""
    ):
        yield _finding("cast", f"{_tensors(some, compared)} cast to {words}: nothing else changed there", some)
    for words, some in _grouped(compared, lambda c: c.detail if c.kind == "quantised" else ""):
        yield _finding("quantised", f"{_tensors(some, compared)} rounded to levels of {words}", some)


def _sparser(moved: Some) -> Iterator[Finding]:
    """Tensors in which entries became zero while others changed too."""
    some = [c for c in moved if c.kind not in ("pruned", "constant") and c.zeros[1] - c.zeros[0] > _SPARSER]
    if some:
        before, now = (sum(c.numel * c.zeros[k] for c in some) / sum(c.numel for c in some) for k in (0, 1))
        text = f"{now:.1%} of the entries of {_count(some)} are zero, {before:.1%} before ({_patterns(some)})"
        yield _finding("sparser", text, some)


def _confined(moved: Some, compared: Some, sym: Symmetry) -> Iterator[Finding]:
    """Whether only biases, gains, statistics or the head changed."""
    for role, noun in _ROLES.items():
        count = sum(role in _roles(c, sym) for c in compared)
        if count < len(compared) and all(role in _roles(c, sym) for c in moved):
            text = f"only {noun} changed: {len(moved)} of {count} ({_some(moved)}); the others are as before"
            yield _finding(f"{role} only", text, moved)
            return


def _roles(c: TensorChange, sym: Symmetry) -> set[str]:
    """The roles of a tensor."""
    if c.name in sym.statistics:
        return {"statistics"}
    found = {"bias" if c.name.endswith("bias") else "gain"} if len(c.shape) <= 1 else set()
    head = any(f.tensor == c.name and f.axis == 0 and f.reason.startswith("output") for f in sym.fixed)
    return found | {"head"} if head else found


def _frozen(moved: Some, compared: Some) -> Iterator[Finding]:
    """Blocks in which nothing changed, if something changed in others."""
    blocks = list(dict.fromkeys(c.block for c in compared))
    frozen = [b for b in blocks if b not in {c.block for c in moved}]
    if frozen:
        text = f"{counted(len(frozen), 'block')} of {len(blocks)} as before: {_ranges(frozen)}"
        yield _finding("frozen", text, [c for c in compared if c.block in frozen])


def _moved(c: TensorChange) -> bool:
    return not c.settled and c.kind not in ("quantised", "narrowed", "widened", "new", "missing")


def pooled(changes: list[TensorChange]) -> list[TensorChange]:
    """Changes with "noise" given to all matrices or none, and with vectors treated like the matrices.

    Vectors alone are too short to show noise or a fresh start; and among trained matrices some look like noise.
    """
    moved = [c for c in changes if _moved(c)]
    matrices = [c for c in moved if len(c.shape) > 1]
    alike = sum(c.numel for c in matrices if c.kind == "noise")
    noisy = bool(alike) and alike >= _NEARLY_ALL * sum(c.numel for c in matrices)
    fresh = _whole_blocks([c for c in moved if c.kind == "replaced"], moved)

    def told(c: TensorChange) -> TensorChange:
        if c.kind == "noise" and not noisy:
            return replace(c, kind="changed", detail=c.detail.removesuffix(LIKE_NOISE))
        vague = len(c.shape) <= 1 and c.kind in ("changed", "rows", "constant", "scaled")
        kind = "noise" if noisy else "replaced" if c.block in fresh else c.kind
        return replace(c, kind=kind, detail="") if vague and kind != c.kind else c

    return [told(c) for c in changes]


def _whole_blocks(some: Some, every: Some) -> list[str]:
    """Blocks all of whose matrices are among the given tensors."""
    names = {c.name for c in some}
    rest = {c.block for c in every if len(c.shape) > 1 and c.name not in names}
    return [b for b in dict.fromkeys(c.block for c in some if len(c.shape) > 1) if b not in rest]


def _low_rank(moved: Some) -> Iterator[Finding]:
    """Updates of low rank, one finding for each rank."""
    for rank, some in _grouped(moved, lambda c: str(c.rank) if c.kind == "low rank" else ""):
        text = f"update of rank {rank} in {_count(some)} ({_patterns(some)}), as an adapter (LoRA) or an edit leaves"
        yield _finding("low rank", f"{text}; relative change {_range(some)}", some)


def _by_kind(every: Iterable[TensorChange], compared: Some, said: Said) -> Iterator[Finding]:
    """One finding for each reported kind of change."""
    for kind, say in said.items():
        some = [c for c in every if c.kind == kind]
        if some:
            yield _finding(_TITLES.get(kind, kind), say(some, compared), some)


def _replaced(some: Some, compared: Some) -> str:
    blocks = _whole_blocks(some, compared)
    if blocks:
        return f"{_ranges(blocks)} re-initialised or replaced: nothing of the weights is left ({_count(some)})"
    return f"{_count(some)} re-initialised or replaced: nothing is left of {_some(some)}"


def _pruned(some: Some, compared: Some) -> str:
    new = sum(c.numel * (c.zeros[1] - c.zeros[0]) for c in some) / sum(c.numel for c in some)
    zeros = sum(c.numel * c.zeros[1] for c in compared) / sum(c.numel for c in compared)
    where = f"{new:.1%} of the weights of {_count(some)} set to zero ({_patterns(some)})"
    if all(SPARSE in c.detail for c in some):
        where += f", {SPARSE}"
    return f"pruned: {where}, the others kept; sparsity is now {zeros:.1%} overall"


def _rows(some: Some, _: Some) -> str:
    return "only some rows changed: " + _each(
        some, lambda c: f"{len(c.rows)} of {c.shape[0]} rows of {c.name} ({listed(map(str, c.rows), _NAMED * 2)})"
    )


def _changed(some: Some, _: Some) -> str:
    shares = sorted(c.effective_rank / min(c.shape[0], c.numel / c.shape[0]) for c in some if c.effective_rank)
    ends = dict.fromkeys(f"{share:.0%}" for share in (*shares[:1], *shares[-1:]))
    said = f", effective rank {' to '.join(ends)} of the full one" if ends else ""
    return f"{_count(some)} trained or edited: relative change {_range(some)}{said} ({_patterns(some)})"


# findings whose name differs from the kind
_TITLES = {"scaled": "scaled tensors", REWRITTEN: "batch norms rewritten"}
_ALONE: Said = {
    "missing": lambda some, _: f"{_count(some)} gone: {_some(some)}",
    "new": lambda some, _: f"{_count(some)} new: {_some(some)}",
}
_LEFT: Said = {
    UNDETERMINED: lambda some, _: (
        f"cannot be told of {_count(some)} ({_some(some)}): changed, or as before and rescaled together with what was "
        "replaced"
    ),
    COUNTED: lambda some, _: (
        "counters of batches differ, which is no change by itself (old checkpoints have none): "
        + _each(some, lambda c: f"{c.name} {c.detail}")
    ),
    REWRITTEN: lambda some, _: f"batch norms rewritten as the same affine maps: {some[0].name}, ...",
}
_CHANGED: Said = {
    "replaced": _replaced,
    "constant": lambda some, _: (
        f"{_count(some)} reset to a constant: " + "; ".join(f"{c.name} {c.detail}" for c in some[:_NAMED])
    ),
    "pruned": _pruned,
    "centred": lambda some, _: (
        f"means over units subtracted from {_count(some)} ({_patterns(some)}), as centring before layer norms leaves"
    ),
    "filled": lambda some, _: f"{_count(some)} changed only where all was zero before ({_patterns(some)})",
    "scaled": lambda some, _: _each(some, lambda c: f"{c.name} {c.detail}"),
    "reordered": lambda some, _: (
        "as before, but in another order, as labels or inputs are renumbered: "
        + _each(some, lambda c: f"{c.detail.split()[0]} of {c.name}")
    ),
    "entries": lambda some, _: (
        "single entries edited, all others as before: " + _each(some, lambda c: f"{c.name} {c.detail}")
    ),
    "rows": _rows,
    "noise": lambda some, _: (
        f"noise on {_count(some)}: independent normal entries of full rank, relative size {_range(some)}"
    ),
    "changed": _changed,
}


def _each(some: Some, say: Callable[[TensorChange], str]) -> str:
    """A phrase for each of the first tensors, and the number of further ones."""
    more = f"; and of {counted(len(some) - _NAMED, 'more tensor')}" if len(some) > _NAMED else ""
    return "; ".join(map(say, some[:_NAMED])) + more


def _grouped(some: Iterable[TensorChange], key: Callable[[TensorChange], str]) -> Iterable[tuple[str, Some]]:
    return ((words, group) for words, group in by_key((key(c), c) for c in some).items() if words)


def _finding(kind: str, text: str, some: Some) -> Finding:
    return Finding(kind, text, tuple(c.name for c in some))


def _count(some: Some) -> str:
    return counted(len(some), "tensor")


def _tensors(some: Some, compared: Some) -> str:
    return f"all {_count(some)}" if len(some) == len(compared) else f"{_count(some)} of {len(compared)}"


def _some(some: Some) -> str:
    return listed((c.name for c in some), _NAMED)


def _patterns(some: Some) -> str:
    """Roles of tensors without layer numbers; for a single tensor, its name."""
    return some[0].name if len(some) == 1 else listed(dict.fromkeys(pattern_of(c.name) for c in some), _NAMED)


def _range(some: Some) -> str:
    sizes = sorted(c.relative for c in some if c.norm) or [0.0]
    return f"{sizes[0]:.2g}" if sizes[-1] <= 1.05 * sizes[0] else f"{sizes[0]:.2g} to {sizes[-1]:.2g}"


def _ranges(blocks: list[str]) -> str:
    said = runs(blocks)
    return listed(said, _NAMED if len(said) > 2 * _NAMED else len(said))


def tie_findings(a: State, b: State) -> Iterator[Finding]:
    """Tensors that became tied or untied."""
    before, after = ({n: x.data_ptr() for n, x in state.items() if x.numel()} for state in (a, b))
    said = {("untied", "were one tensor and are two now"): (before, after)}
    said |= {("tied", "were two tensors and are one now"): (after, before)}
    for (kind, words), (one, two) in said.items():
        first: dict[int, str] = {}
        for name in (n for n in before if n in after):
            other = first.setdefault(one[name], name)
            if two[other] != two[name]:
                yield Finding(kind, f"{name} and {other} {words}", (other, name))


LOST = ("replaced", "constant")  # nothing is left of the effect of a scale


def told_apart(changes: list[TensorChange], sym: Symmetry, g: Transformation) -> list[TensorChange]:
    """Changes, with vectors marked that may just have been rescaled together with replaced tensors.

    This holds for a gain if all its readers were replaced: its units could have any scales. If ``g`` rescales nothing
    else, no vector is marked.
    """
    if all(e.restrict({"scale", "sign", "linear"}).is_identity(0.0) for e in g.elements.values()):
        return changes
    sharing = by_key((freedom, c) for c in changes if c.name in sym.layouts for freedom in moving(sym.layouts[c.name]))

    def free(c: TensorChange) -> bool:
        scales = [f for f in moving(sym.layouts[c.name]) if f[1] == "scale"]
        rest = [[other.kind in LOST for other in sharing[f] if other.name != c.name] for f in scales]
        return any(lost and all(lost) for lost in rest)

    def told(c: TensorChange) -> TensorChange:
        vector = c.name in sym.layouts and not c.settled and len(c.shape) == 1 and c.zeros[0] == c.zeros[1]
        return replace(c, kind=UNDETERMINED, detail="", rank=None) if vector and free(c) else c

    return [told(c) for c in changes]
