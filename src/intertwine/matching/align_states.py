"""Alignment of state dicts that do not fit in memory: one tensor of each network at a time."""

import time
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

import torch
from torch import Tensor

from .._io.lazy import LazyState
from ..symmetry import Symmetry
from ..symmetry.action import transform
from ..symmetry.gauge.canonical import check_weights
from ..symmetry.transformation import KINDS, check_kinds, identity
from .alignment import Alignment
from .coordinates.problem import Problem, searched
from .costs.incremental import Costs
from .costs.weight_blocks import Member, Row
from .judgement.agreement import streamed_agreement, unweighted
from .solvers import Solver
from .solvers.coordinate_descent import CoordinateDescent, search
from .solvers.starts import streamed_profiles

_KINDS = ("permutation", "sign")


def align_states(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    sym: Symmetry,
    method: str | Solver,
    kinds: Collection[str] | None,
    seed: int,
) -> Alignment:
    """The alignment of two state dicts, tensor by tensor.

    The solver is that of ``align(..., method="weights")``, from the same starts, in the same order.
    Costs of a space are computed from scratch each time: its tensors are read one after the other, so that one tensor
    of each network and one cost matrix are in memory. Scales and bases are not searched: what balances them depends on
    the whole network.

    Args:
        a: The state dict whose basis is kept.
        b: The one that is to move; of the same architecture.
        sym: The symmetry of the architecture.
        method: ``"weights"`` or options of its search: one start by default, for each reads both some ten times.
        kinds: Kinds of elements to search, among ``"permutation"`` and ``"sign"``, both by default.
        seed: Same seed, same alignment.

    Raises:
        ValueError: If scales or bases are to be searched, or another method is asked for. So too, by the checks on
            weights, if a tensor is missing, of another shape, or not finite.
    """
    started = time.perf_counter()
    chosen = check_kinds(_KINDS if kinds is None else kinds)
    if not chosen <= set(_KINDS):
        raise ValueError(
            f"kinds must be among {_KINDS} for state dicts, which are read tensor by tensor. Got {sorted(chosen)}. "
            "Scales and bases need the whole network: align modules."
        )
    if method != "weights" and not isinstance(method, CoordinateDescent):
        raise ValueError(f"method must be 'weights' for state dicts, or its options. Got {method!r}.")
    for state in (a, b):
        check_weights(sym, state)
    still = identity(sym)
    free = searched(sym, chosen)
    left, right = (_wide(state, free) for state in (a, b))
    stated = Problem(free, left, right, still, still, sym)
    solver = CoordinateDescent() if isinstance(method, str) else method
    best, reached = search(stated, solver, seed, _Streamed, streamed_profiles)
    quality, before, after = streamed_agreement(stated, best.g)
    return Alignment(
        method="weights",
        symmetry=sym,
        transformation=stated.lift(best.g),
        objective=best.history[-1],
        history=best.history,
        quality=quality,
        before=before,
        after=after,
        kinds=tuple(kind for kind in KINDS if kind in chosen),
        seconds=time.perf_counter() - started,
        seed=seed,
        starts=reached,
        notes=tuple(unweighted(quality)),
    )


def _wide(state: Mapping[str, Tensor], sym: Symmetry) -> LazyState:
    """The tensors that a symmetry describes, read when asked for, at least in single precision."""
    double = torch.float64
    wide = LazyState.changed(state, lambda _, x: x.to(double if x.dtype == double else torch.float32))
    return LazyState.renamed(wide, {name: name for name in sym.layouts})


class _Streamed(Costs):
    """Costs of one space at a time, always from scratch."""

    def of(self, space: str) -> dict[Row, Tensor]:
        """As in ``Costs``; only those of the space that was asked for last are kept."""
        if space not in self._now:
            self._now = {space: self._summed(space)}
        return self._now[space]

    def present(self, name: str) -> Tensor:
        """A tensor of ``b`` as it was moved so far, read anew."""
        return transform(self.problem.b[name], self.problem.sym.layouts[name], self.g)

    def _summed(self, space: str) -> dict[Row, Tensor]:
        found: dict[Row, Tensor] = {}
        for name, some in groupby(self.problem.members[space], key=lambda m: m.tensor):
            self._add_tensor(found, name, some)
        return found

    def _add_tensor(self, found: dict[Row, Tensor], name: str, members: Iterable[Member]) -> None:
        """Add the products of all members of a tensor, which is read once."""
        ours, theirs = self.problem.a[name], self.present(name)
        for m in members:
            product = m.view(m.block.read(ours)) @ m.view(m.block.read(theirs)).mT
            found[m.row] = found[m.row] + product if m.row in found else product
