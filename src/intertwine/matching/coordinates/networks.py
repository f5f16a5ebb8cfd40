"""Two networks of one architecture, and the coordinates in which their weights are compared.

A gain per unit ties a stream to its axes. Once gains are folded into the maps that read them, a norm depends only on a
length, and the stream's group grows from permutations to rotations: this is the gauge used here. Networks are folded
before they are aligned, and the line between them joins their folded forms, which compute the same functions.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..._io.lazy import LazyState, State
from ...errors import VerificationError
from ...symmetry.action import check_ties, moved, tensors_of
from ...symmetry.blocks import carrying
from ...symmetry.find import symmetries
from ...symmetry.folding.fold import centre, push_biases
from ...symmetry.folding.norms import NORMALISING, fold_norms, level_biases, norms, rotatable
from ...symmetry.folding.rewriter import Rewriter
from ...symmetry.gauge.bases import least_passing, undetermined
from ...symmetry.gauge.canonical import Folded, balanced, fold
from ...symmetry.gauge.signs import signing
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..judgement.configurations import sizes_and_settings
from .problem import Problem, keeping, searched

_MANY = 3  # tensors that share a basis
NEAR = 0.7  # cosine of embeddings after rotation below which networks are no fine-tuned copies of each other


@dataclass(frozen=True, eq=False)
class Gauge:
    """How networks of one architecture are folded."""

    sym: Symmetry  # Of the folded networks
    ones: frozenset[str]  # Streams whose mean layer norms take: there, rotations keep the vector of ones
    added: tuple[str, ...]  # Extra tensors of the folded networks, as ``fold`` reports
    gains: Mapping[str, float]  # Norm parameters that were folded, with the value that each entry has since
    example_inputs: Any
    known: tuple[tuple[nn.Module, nn.Module], ...]  # Networks already folded, each with its folded form

    def __call__(self, model: nn.Module) -> nn.Module:
        """A network in this gauge: new weights, the same function."""
        for one, folded in self.known:
            if model is one or model is folded:
                return folded
        made = _fold(model, self.example_inputs)
        if made is None or not same_form(made.sym, self.sym):
            raise ValueError("model must fold like the networks that were aligned. Got another form: align it itself.")
        return made.known[0][1]

    def note(self, whom: str) -> str:
        """A note on the gauge for the reader."""
        more = f", with {', '.join(self.added)} of their own" if self.added else ""
        return f"gains of norms were folded in {whom}{more}, so that streams rotate"

    def kept(self, g: Transformation) -> Transformation:
        """The closest element that keeps the vector of ones exactly, in the streams where it must."""
        for name in self.ones:
            if (linear := g[name].linear) is not None:
                g = with_parts(g, name, linear=keeping(linear), signs=torch.ones_like(g[name].signs))
        return g


def gauge_of(models: Sequence[nn.Module], example_inputs: Any, sym: Symmetry) -> Gauge | None:
    """The gauge in which a widely shared space may rotate; ``None`` if no group grows or models fold differently."""
    program = sym.origin.program if sym.origin is not None else None
    if program is None or not any(call.op in NORMALISING for call in program.calls):
        return None
    found = [one for model in models if (one := _fold(model, example_inputs)) is not None]
    if len(found) < len(models) or not all(same_form(one.sym, found[0].sym) for one in found):
        return None
    folded = replace(found[0].sym, dtype=sym.dtype, notes=sym.notes, path_only=sym.path_only, caches=sym.caches)
    return replace(found[0], sym=folded, known=tuple(pair for one in found for pair in one.known))


def _fold(model: nn.Module, example_inputs: Any) -> Gauge | None:
    """The gauge of one network; ``None`` if none of its streams may rotate."""
    try:
        rewriter = Rewriter(model, example_inputs, biases=False)
        for step in (fold_norms, push_biases, centre, level_biases):
            step(rewriter)
        sym, centred = rotatable(rewriter)
        carried = Counter(name for layout in sym.layouts.values() for name in layout.spaces)
        streams = {s.name for s in sym.spaces if s.group.is_orthogonal and carried[s.name] >= _MANY and not s.parents}
        if not streams:
            return None
        rewriter.prove()
    except (ValueError, VerificationError):  # nothing can be folded, or not without changing the function
        return None
    known = ((model, rewriter.finished()),)
    gains = {n.gain.view.source: n.gain.one for n in norms(rewriter.graph) if bool((n.gain.numbers == 1).all())}
    return Gauge(sym, frozenset(streams & centred), tuple(rewriter.added), gains, example_inputs, known)


def folded_by(gauge: Gauge | None, gains: Mapping[str, float], model: nn.Module) -> nn.Module:
    """A network in a gauge, or, where only its ``gains`` were saved, the network itself, which must be folded."""
    if gauge is not None:
        return gauge(model)
    state = model if isinstance(model, Mapping) else tensors_of(model)
    for name, one in gains.items():
        if name in state and not bool((state[name] == one).all()):
            raise ValueError(
                f"gains of norms must be folded, as in the aligned pair. Got {name} with entries other than {one:g}: "
                "give iw.fold(model, example_inputs).model, or align again."
            )
    return model


def turning(sym: Symmetry, a: State, b: State) -> tuple[Transformation, float]:
    """The rotations that bring embeddings (tensors that only they move) of ``a`` nearest to those of ``b``; a cosine.

    For each space this is the orthogonal Procrustes solution over those tensors. The cosine is averaged over a space's
    tensors; the smallest over spaces is returned, or 1 if there are none. Unit positions in other spaces do not matter.
    """
    g, least = identity(sym), 1.0
    for space in (s for s in sym.spaces if s.group.is_orthogonal):
        products = list[Tensor]()
        for m in carrying(sym.layouts, space):
            known = m.tensor in a and m.tensor in b and a[m.tensor].shape == b[m.tensor].shape
            if len(m.block.carried) == 1 and known:
                u, v = (m.block.read(t[m.tensor]).movedim(m.dim, -1).reshape(-1, space.size).float() for t in (a, b))
                if len(u) >= space.size:  # fewer rows can always be made to agree
                    products.append(u.mT @ v / (u.norm() * v.norm()).clamp(min=1e-30))
        if products:
            left, cosines, right = torch.linalg.svd(torch.stack(products).mean(0))
            least = min(least, float(cosines.sum()))
            g = with_parts(g, space.name, linear=(left @ right).mT.double())
    return g, least


def same_form(sym: Symmetry, other: Symmetry) -> bool:
    """Whether two symmetries have the same elements, which move the same tensors in the same way."""
    return (sym.spaces, sym.layouts) == (other.spaces, other.layouts)


PRECISION = {torch.float32: 1e-7, torch.float64: 1e-12}  # of log scales: the rounding of such weights


@dataclass(eq=False)
class Balanced:
    """A network in balanced coordinates: with scales and bases in which networks can be compared weight by weight.

    Of all copies that differ in scales and bases, the balanced one has (almost) the smallest sum of squared weights
    (``symmetry.gauge.scales``). Rotations are either fixed, as in the canonical form, or left open for the search.
    """

    folded: Folded  # Its weights, batch norms folded
    to: Transformation  # The element that brings them into balanced coordinates
    tolerance: float = 1e-12  # Accuracy of the scales

    @classmethod
    def upright(cls, folded: Folded, kinds: Collection[str], tolerance: float = 1e-12) -> "Balanced":
        """The network with scales and bases of some kinds balanced and rotations left open: bases change least."""
        return cls(folded, balanced(folded, tolerance, kinds, rotations=False), tolerance)

    @classmethod
    def normal(cls, folded: Folded) -> "Balanced":
        """The network with scales and bases in normal form, and signs of parent spaces, which are matched without."""
        dtype = next((t.dtype for t in folded.state.values()), torch.float64)
        found = cls(folded, balanced(folded, PRECISION[dtype]))
        outer = folded.sym.outer
        if any(s.group.signs and s.name in outer for s in folded.sym.spaces):
            found = cls(folded, signing(folded.sym, found.state).restrict(spaces=outer) @ found.to)
        return found

    @cached_property
    def state(self) -> State:
        """The weights in these coordinates; tensors that ``to`` does not change share memory."""
        return {**self.folded.state, **moved(self.sym, self.to, self.folded.state)}

    def forget(self) -> None:
        """Free the weights in these coordinates; they are recomputed when asked for."""
        self.__dict__.pop("state", None)

    @property
    def sym(self) -> Symmetry:
        """The symmetry of the folded weights."""
        return self.folded.sym

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Linear spaces whose basis the weights do not determine."""
        return undetermined(self.sym, self.folded.state, least_passing(self.tolerance))


@dataclass(frozen=True, eq=False)
class Networks:
    """Two networks of one architecture, and which part of the group is searched."""

    a: Any  # The network whose basis is kept: a module, or a state dict with one tensor in memory
    b: Any  # The network to move
    sym: Symmetry  # The symmetry of ``a``
    sym_b: Symmetry  # The symmetry of ``b``: the same spaces and layouts
    # Kinds of elements to search, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``
    kinds: Collection[str]
    loader: Iterable[Any] | None = None  # Batches, for solvers that use data
    seed: int = 0  # Seed of all random choices
    gauge: Gauge | None = None  # How both were folded, if that enlarged the group

    @property
    def stored(self) -> bool:
        """Whether the networks are state dicts, which are read tensor by tensor."""
        return isinstance(self.a, Mapping)

    @property
    def states(self) -> tuple[State, State]:
        """The tensors of both networks."""
        return (self.a, self.b) if self.stored else (tensors_of(self.a), tensors_of(self.b))

    @cached_property
    def balanced(self) -> tuple[Balanced, Balanced]:
        """Both networks in the coordinates in which the searched kinds are compared, with batch norms folded."""
        tolerance = PRECISION[self._precision]
        a, b = (fold(sym, state) for sym, state in zip((self.sym, self.sym_b), self.states))
        return Balanced.upright(a, self.kinds, tolerance), Balanced.upright(b, self.kinds, tolerance)

    @cached_property
    def stated(self) -> Problem:
        """The problem of aligning by weights, in the precision of the weights."""
        if not self.stored:
            return self.problem(self._precision)
        free = searched(self.sym, self.kinds)
        names, double = {name: name for name in free.layouts}, torch.float64
        wide = lambda _, x: x.to(double if x.dtype == double else torch.float32)  # on demand
        a, b = (LazyState.changed(LazyState.renamed(state, names), wide) for state in self.states)
        return Problem.plain(free, a, b, self.sym)

    @property
    def _precision(self) -> torch.dtype:
        """The precision of the weights, at least float32."""
        double = any(t.dtype == torch.float64 for t in tensors_of(self.a).values())
        return torch.float64 if double else torch.float32

    def problem(self, dtype: torch.dtype) -> Problem:
        """The problem of aligning by weights, in a given precision.

        If scales or bases are searched, batch norms enter as their eval-mode affine maps. Otherwise gains and biases
        enter as stored, and running statistics do not enter: they follow the units, but have the size of the data, so
        that as weights they would outvote all others.
        """
        if {"scale", "linear"} & set(self.kinds):
            acting = self.balanced[0].sym
            states = [side.state for side in self.balanced]
            to_a, to_b = (side.to for side in self.balanced)
        else:
            acting, states = self.sym, [*self.states]
            to_a = to_b = identity(self.sym)
        device = next((t.device for t in tensors_of(self.a).values()), torch.device("cpu"))
        free = searched(acting, self.kinds)
        a, b = ({name: state[name].to(device, dtype) for name in free.layouts if name in state} for state in states)
        stated = Problem(free, a, b, to_a, to_b, self.sym)
        return stated if self.gauge is None else stated.turning(self.gauge.ones)


_OTHER_WIDTHS = (
    "For other widths of one architecture, first bring b to those of a with merging.transport ('intertwine transport')."
)
_OTHER_ROWS = (
    "Rows of tokens or classes have places of their own: give both the same ones first, such as those that both know, "
    "or take a head from one of them. Attention heads must be as many and of one size in both: repeat keys and values "
    "that several heads share, if they are what differs."
)


def check_matching(a: nn.Module, b: nn.Module, names: tuple[str, str] = ("a", "b"), finite: bool = True) -> None:
    """Refuse two networks that are not of one architecture and one width."""
    one, other = tensors_of(a), tensors_of(b)
    for name in [*one, *(n for n in other if n not in one)]:
        if name not in one or name not in other:
            raise ValueError(
                f"{names[0]} and {names[1]} must be of one architecture. Got {name!r} in only one of them."
            )
        if one[name].shape != other[name].shape:
            shapes = f"{tuple(one[name].shape)} and {tuple(other[name].shape)}"
            shapes += f" ({told})" if (told := sizes_and_settings(a, b)) else ""
            pairs = [(one[n].shape, other[n].shape) for n in one if n in other and one[n].shape != other[n].shape]
            rows = all(len(x) == len(y) and x[1:] == y[1:] for x, y in pairs)  # else others would read the units
            raise ValueError(
                f"{names[0]} and {names[1]} must be of one architecture and have the same widths. Got {name!r} of "
                f"shapes {shapes}. " + (_OTHER_ROWS if rows else _OTHER_WIDTHS)
            )
    first: dict[int, str] = {}
    for name, parameter in a.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(parameter), name)
        if own != name and not torch.equal(other[own], other[name]):
            raise ValueError(
                f"{names[0]} and {names[1]} must be tied alike. Got {own!r} and {name!r}, one tensor in {names[0]}, "
                f"that differ in {names[1]}. Give {names[0]} a tensor of its own for each first."
            )
    for whose, model in zip(names, (a, b)) if finite else ():
        for name, parameter in model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise ValueError(
                    f"{whose} must hold finite weights. Got NaN or infinity in {name!r}. Take a checkpoint from before "
                    "the training diverged."
                )
    for name, x in one.items() if finite else ():  # counters apart
        whole = x.numel() > 1 and not (x.is_floating_point() or x.is_complex())
        if whole and not torch.equal(x, other[name].to(x.device)):
            raise ValueError(
                f"{names[0]} and {names[1]} must hold real numbers wherever they differ, to have a mean. Got "
                f"{str(x.dtype).removeprefix('torch.')} in {name!r}: convert or dequantise both first."
            )
        masks = name.endswith("_mask") and f"{name.removesuffix('_mask')}_orig" in one
        if masks and not torch.equal(x, other[name].to(x)):
            raise ValueError(
                f"{names[0]} and {names[1]} must be pruned alike, or hold their pruned weights, to have a mean. Got "
                f"other masks in {name!r}: call torch.nn.utils.prune.remove on every pruned layer of both first."
            )


def common_symmetry(a: nn.Module, b: nn.Module, example_inputs: Any, sym: Symmetry | None) -> tuple[Symmetry, Symmetry]:
    """The symmetry of both networks, after a check that they are of one architecture."""
    check_matching(a, b, finite=False)
    if sym is not None:
        for model in (a, b):
            check_ties(sym, tensors_of(model), written=True)
        return sym, sym
    sym, sym_b = symmetries(a, example_inputs), symmetries(b, example_inputs)
    if not same_form(sym, sym_b):
        raise ValueError("a and b must be of one architecture. Got equal shapes, but models with other symmetries.")
    return sym, sym_b
