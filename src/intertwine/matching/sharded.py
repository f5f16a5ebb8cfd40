"""Matching checkpoints that do not fit in memory: one tensor, or one component, of each network at a time."""

import time
from collections.abc import Collection, Iterable
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from .._evaluation import in_usual_mode
from ..symmetry import Symmetry
from ..symmetry.action import transform
from ..symmetry.gauge.canonical import check_weights
from ..symmetry.sharded import Renamed, ShardedState, act_sharded
from ..symmetry.transformation import KINDS, check_kinds, identity
from .alignment import Alignment
from .coordinates.problem import Problem, searched
from .costs.incremental import Costs
from .costs.weight_blocks import Member, Row
from .judgement.agreement import streamed_agreement, unweighted
from .judgement.verdict import Match
from .same import COMPONENT, decided
from .solvers.coordinate_descent import CoordinateDescent, search
from .solvers.starts import streamed_profiles

_KINDS = ("permutation", "sign")


@in_usual_mode
def align_sharded(
    a: str | Path,
    b: str | Path,
    sym: Symmetry,
    target: str | Path,
    kinds: Collection[str] = _KINDS,
    seed: int = 0,
    method: CoordinateDescent | None = None,
    shard_bytes: int = 2 * 1024**3,
) -> Alignment:
    """Bring a checkpoint on disk into the basis of another, and write it in shards.

    The solver is that of ``align(..., method="weights")``, from the same starts, in the same order.
    Costs of a space are computed from scratch each time: its tensors are read one after the other, so that one tensor
    of each network and one cost matrix are in memory. Scales and bases are not searched: what balances them depends on
    the whole network.

    Args:
        a: The checkpoint whose basis is kept: an index, a ``.safetensors`` file, or a folder with either.
        b: The checkpoint that is to move; of the same architecture. Both are left as they are.
        sym: The symmetry of the architecture, found on the meta device for instance.
        target: A folder for the moved checkpoint.
        kinds: Kinds of elements to search, among ``"permutation"`` and ``"sign"``.
        seed: Same seed, same alignment.
        method: Options of the search: one start by default, for each reads both checkpoints some ten times.
        shard_bytes: Largest size of a shard that is written.

    Raises:
        ValueError: If scales or bases are to be searched. So too, by the checks on weights, if a
            tensor is missing, of another shape, or not finite.
        CheckpointError: If a file is missing or damaged.

    Examples:
        >>> import intertwine as iw
        >>> from safetensors.torch import save_file
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> sym = iw.symmetries(model, torch.zeros(2, 4))
        >>> twin = sym.act(sym.random(seed=1, kinds=["permutation"]), model)
        >>> folder = getfixture("tmp_path")
        >>> for name, net in (("a", model), ("b", twin)):
        ...     save_file(net.state_dict(), folder / f"{name}.safetensors")
        >>> align_sharded(folder / "a.safetensors", folder / "b.safetensors", sym, folder / "moved").after
        0.0
    """  # noqa: DOC502 - raised by what it calls
    started = time.perf_counter()
    chosen = check_kinds(kinds)
    if not chosen <= set(_KINDS):
        raise ValueError(
            f"kinds must be among {_KINDS} for checkpoints that are read tensor by tensor. Got {sorted(chosen)}. "
            "Scales and bases need the whole network: use align()."
        )
    states = ShardedState(a), ShardedState(b)
    for state in states:
        state.check(sym)
        check_weights(sym, state)
    still = identity(sym)
    free = searched(sym, chosen)
    left, right = (_Read(state, free) for state in states)
    stated = Problem(free, left, right, still, still, sym)
    best, reached = search(stated, method or CoordinateDescent(), seed, _Streamed, streamed_profiles)
    quality, before, after = streamed_agreement(stated, best.g)
    g = stated.lift(best.g)
    act_sharded(sym, g, b, target, shard_bytes)
    return Alignment(
        method="weights",
        symmetry=sym,
        transformation=g,
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


@in_usual_mode
def same_sharded(a: str | Path, b: str | Path, sym: Symmetry) -> Match:
    """Decide whether two checkpoints on disk are one network up to symmetry, reading one component at a time.

    A component is a group of tensors that scales and bases couple, and what else fits beside it. Spaces that all of
    them share, such as a residual stream, are matched first (``matching.components``). The verdicts are those of
    ``same``, but the networks are not run: "the same" is said of the weights alone. Where spaces cannot be told apart
    in this way, because units of others lie in them or a matrix mixes them, the tensors that they join are one
    component.

    Args:
        a: One checkpoint: an index, a ``.safetensors`` file, or a folder with either.
        b: The other; of the same architecture. Both are left as they are.
        sym: The symmetry of the architecture, found on the meta device for instance.

    Returns:
        The match. Tensors of another shape, missing ones and weights that are not finite are refused with a
        ``ValueError``, missing or damaged files with a ``CheckpointError``.

    Examples:
        >>> import intertwine as iw
        >>> from safetensors.torch import save_file
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> sym = iw.symmetries(model, torch.zeros(2, 4))
        >>> folder = getfixture("tmp_path")
        >>> for name, net in (("a", model), ("b", sym.act(sym.random(seed=1), model))):
        ...     save_file(net.state_dict(), folder / f"{name}.safetensors")
        >>> same_sharded(folder / "a.safetensors", folder / "b.safetensors", sym).verdict
        'the same network up to symmetry'
    """
    states = ShardedState(a), ShardedState(b)
    for state in states:
        state.check(sym)
    return decided(sym, states, COMPONENT, {}, None)


class _Read(Renamed):
    """The tensors of a checkpoint that a symmetry describes, read when asked for, at least in single precision."""

    def __init__(self, state: ShardedState, sym: Symmetry) -> None:
        super().__init__(state, {name: name for name in sym.layouts})

    def __getitem__(self, name: str) -> Tensor:
        tensor = super().__getitem__(name)
        return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


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
