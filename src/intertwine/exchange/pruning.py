"""Structured pruning: some units of a hidden space taken out of every tensor that carries it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import VerificationError
from ..symmetry.action import rewritable, tensors_of
from ..symmetry.kept_rows import axis_rows, axis_spaces, kept_rows
from ..symmetry.spaces import Axis, Product, Sum, axis_size
from ..symmetry.verification.float64 import float64_casts, in_float64
from ..testing import outputs, relative_error

if TYPE_CHECKING:
    from ..symmetry import Symmetry

__all__ = ["prune_channels"]

_MOST_ATTRIBUTES = 8  # sizes noted in a module's attributes, of which any may have to change
_SIZES: dict[type[nn.Module], dict[str, int]] = {
    nn.Linear: {"out_features": 0, "in_features": 1},
    nn.Embedding: {"num_embeddings": 0, "embedding_dim": 1},
    nn.modules.batchnorm._BatchNorm: {"num_features": 0},
}
"""Attributes of torch's modules that say the length of an axis of ``weight``."""


def prune_channels(
    sym: Symmetry, space: str, keep: Iterable[int] | Tensor, model: nn.Module, example_inputs: Any
) -> nn.Module:
    """A smaller model without some units of a space: channels, hidden units of a gated MLP, heads, groups of heads.

    All tensors that carry the space lose the same rows. A space with parents loses the same units under each of them.
    Sizes that modules note in attributes follow. The result is compared in float64 with the model whose units are
    masked (their slices set to zero in all tensors): pruning means nothing else.

    Args:
        sym: The symmetry of the model's architecture.
        space: Name of the space, as in ``sym.spaces``.
        keep: Units that stay.
        model: The model. It is left as it is.
        example_inputs: See ``symmetries``.

    Returns:
        A new model of the same class.

    Raises:
        ValueError: If the space or a unit does not exist, none is kept, or the model's code does not run with fewer.
        VerificationError: If the smaller model is another function than the masked one, as where a norm or a softmax
            runs over the units.

    Examples:
        >>> import intertwine as iw
        >>> model, x = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(5, 3)
        >>> prune_channels(iw.symmetries(model, x), "0.weight[0]", [0, 1, 5], model, x)
        Sequential(
          (0): Linear(in_features=3, out_features=3, bias=True)
          (1): ReLU()
          (2): Linear(in_features=3, out_features=2, bias=True)
        )
    """
    units = _checked(sym, space, keep)
    rows = kept_rows(sym, space, units)
    wide, inputs, rtol = in_float64(model, example_inputs)
    masked = _masked(sym, wide, space, units)
    with float64_casts():
        wanted = outputs(masked, inputs)
    error, said = float("inf"), ""
    small = _cut(sym, wide, rows)
    for changes in _choices(model, sym, space, units, rows):
        for module, name, _, new in changes:
            setattr(small.get_submodule(module), name, new)
        try:
            with float64_casts():
                error = min(error, relative_error(wanted, outputs(small, inputs)))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as failed:
            said = said or str(failed).partition("\n")[0]
        if error <= rtol:
            small = _cut(sym, rewritable(sym, model), rows)
            for module, name, _, new in changes:
                setattr(small.get_submodule(module), name, new)
            return small
        for module, name, old, _ in changes:
            setattr(small.get_submodule(module), name, old)
    if error == float("inf"):
        raise ValueError(f"model must run with {len(units)} units of {space!r}. Got {said}")
    raise VerificationError(
        f"units must be ones that contribute to sums alone, so that pruning is masking. Got {space!r}, where the "
        f"pruned model differs by {error:.1e}: a norm or a softmax runs over its units."
    )


def _checked(sym: Symmetry, space: str, keep: Iterable[int] | Tensor) -> list[int]:
    """The units in order.

    Raises:
        ValueError: If there are none, or one does not exist or comes twice.
    """
    size = sym.space(space).size
    units = sorted(int(k) for k in keep)
    if not units or units[0] < 0 or units[-1] >= size or len(set(units)) < len(units):
        raise ValueError(f"keep must hold different units of {space!r}, from 0 to {size - 1}. Got {units[:8]}.")
    return units


def _masked(sym: Symmetry, model: nn.Module, space: str, units: list[int]) -> nn.Module:
    """The model with the slices of all other units set to zero; running statistics stay."""
    gone = sorted(set(range(sym.space(space).size)) - set(units))
    twin = rewritable(sym, model)
    statistics = {name for norm in sym.batch_norms for name in (norm.mean, norm.variance)}
    live = tensors_of(twin)
    with torch.no_grad():
        for name, axes in kept_rows(sym, space, gone).items() if gone else ():
            for axis, rows in axes.items() if name not in statistics else ():
                live[name].index_fill_(axis, _only(sym, name, axis, space, rows, units).to(live[name].device), 0)
    return twin


def _only(sym: Symmetry, name: str, axis: int, space: str, rows: Tensor, units: list[int]) -> Tensor:
    """Rows that belong to the pruned units, and not to other parts of the axis."""
    kept = axis_rows(sym.layouts[name].axes[axis], space, torch.as_tensor(units))
    return rows[~torch.isin(rows, kept)]


def _cut(sym: Symmetry, model: nn.Module, rows: dict[str, dict[int, Tensor]]) -> nn.Module:
    """A copy of the model with the chosen rows of its tensors, and the sizes that torch's modules note."""
    twin = rewritable(sym, model)
    names = {**{name: name for name in rows}, **{a: n for a, n in sym.aliases.items() if n in rows}}
    made: dict[str, Any] = {}
    for alias, name in names.items():
        place, _, last = alias.rpartition(".")
        module = twin.get_submodule(place)
        if name not in made:
            old = getattr(module, last)
            new = old.detach()
            for axis, kept in rows[name].items():
                new = new.index_select(axis, kept.to(new.device))
            made[name] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        setattr(module, last, made[name])
        _note_sizes(module)
    return twin


def _note_sizes(module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    for kind, names in _SIZES.items():
        if isinstance(module, kind) and isinstance(weight, Tensor):
            for name, axis in names.items():
                setattr(module, name, weight.shape[axis])
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and isinstance(weight, Tensor):
        module.normalized_shape = tuple(weight.shape)
    if isinstance(module, nn.modules.conv._ConvNd) and isinstance(weight, Tensor):
        first, second = ("in_channels", "out_channels") if module.transposed else ("out_channels", "in_channels")
        depthwise = module.groups > 1 and module.groups == module.in_channels
        module.groups = weight.shape[0] if depthwise else module.groups
        setattr(module, first, weight.shape[0])
        setattr(module, second, weight.shape[1] * module.groups)


def _choices(
    model: nn.Module, sym: Symmetry, space: str, units: list[int], rows: dict[str, dict[int, Tensor]]
) -> Iterator[list[tuple[str, str, int, int]]]:
    """Attributes that may have to change, as module, name, old and new value: all of them, none, then most of them."""
    sizes: dict[str, dict[int, set[int]]] = {}  # of the modules that hold the tensors, and of those around them
    for name, axes in rows.items():
        own = name.rpartition(".")[0]
        for axis in axes:
            whole, *parts = _lengths(sym.layouts[name].axes[axis], space, len(units))
            for place, lengths in ((own, [whole]), (own.rpartition(".")[0], [whole, *parts])):
                for old, new in lengths:
                    sizes.setdefault(place, {}).setdefault(old, set()).add(new)
    found = []
    for place, known in sorted(sizes.items()):
        module = model.get_submodule(place)
        noted = {} if type(module).__module__.startswith("torch.nn") or not place else vars(module)
        for name, value in noted.items():
            if type(value) is int and value in known:
                found += [(place, name, value, new) for new in sorted(known[value]) if new != value]
    yield found
    yield []
    for count in range(len(found) - 1, 0, -1) if len(found) <= _MOST_ATTRIBUTES else ():
        yield from (list(chosen) for chosen in combinations(found, count))


def _lengths(axis: Axis, space: str, new: int) -> Iterator[tuple[int, int]]:
    """Old and new lengths of an axis, of its factors and of products of neighbours among these."""
    yield axis_size(axis), len(axis_rows(axis, space, torch.arange(new)))
    if isinstance(axis, Product):
        sizes = [(axis_size(f), len(axis_rows(f, space, torch.arange(new)))) for f in axis.factors]
        for start in range(len(sizes)):
            for stop in range(start + 1, len(sizes) + 1):
                yield tuple(prod(pair[k] for pair in sizes[start:stop]) for k in (0, 1))  # type: ignore[misc]
    for inner in axis.factors if isinstance(axis, Product) else ():
        yield from _lengths(inner, space, new) if space in set(axis_spaces(inner)) else ()
    for part in axis.parts if isinstance(axis, Sum) else ():
        yield from _lengths(part.axis, space, new) if space in set(axis_spaces(part.axis)) else ()
