"""Structured pruning: removal of units of a hidden space from every tensor that carries it.

A pruned model must equal the masked one: the whole model in which some units no longer contribute. Its configuration,
the sizes from which its class builds it, is kept consistent with its tensors.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import combinations
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._evaluation import in_usual_mode
from .._nested import map_tensors
from .._random import seeded
from ..errors import VerificationError
from ..features.spectral_norms import spectral_norms
from ..symmetry import Symmetry
from ..symmetry.action import rewritable, tensors_of
from ..symmetry.coupling import axis_rows, kept_rows
from ..symmetry.description import Description
from ..symmetry.folding.rewriter import built, is_configured, misfits, set_unsaveable, shapes
from ..symmetry.proof import Wide, in_float64
from ..symmetry.spaces import Axis, Product, Sum, axis_size, spaces_of
from ..testing import relative_error
from .exported_model import check_plain

Rows = Mapping[str, Mapping[int, Tensor]]
Change = tuple[str, str, int, int]  # module, attribute, old and new value

_REMOVE = (
    " Where it is a spectral norm, put the divided weight in its place first, after model.eval(): torch.nn.utils."
    "parametrize.remove_parametrizations(layer, 'weight') or torch.nn.utils.remove_spectral_norm(layer)."
)
_MOST_ATTRIBUTES = 8  # sizes stored in a module's attributes, any of which may have to change
_SIZES: dict[type[nn.Module], dict[str, int]] = {
    nn.Linear: {"out_features": 0, "in_features": 1},
    nn.Embedding: {"num_embeddings": 0, "embedding_dim": 1},
    nn.modules.batchnorm._NormBase: {"num_features": 0},  # of instances too
}
"""Attributes of torch's modules that store the length of an axis of ``weight``."""
_MOST = 4  # most settings that change together


Setting = tuple[tuple[str, ...], str, int]
"""One size: the path to the part of the configuration that holds it, its name and its new value."""


@in_usual_mode
def prune_channels(
    sym: Symmetry, space: str | Sequence[str], keep: Iterable[int] | Tensor, model: nn.Module, example_inputs: Any
) -> nn.Module:
    """A smaller model without some units of a space: channels, hidden units of a gated MLP, heads, groups, experts.

    All tensors that carry the space lose the same rows. A space with parents loses the same units under each of them.
    Sizes stored in module attributes are updated, and so is the configuration of a transformers model if its class can
    express them; if it cannot, ``save_pretrained`` of the smaller model refuses. The result is compared in float64 with
    the whole model with the units masked: their slices are zero in all tensors or, if a softmax or a top-k chooses
    among them (experts), their logits are minus infinity.

    Args:
        sym: The symmetry of the model's architecture.
        space: Name of the space, as in ``sym.spaces``, or several that lose the same units, like those of all layers.
        keep: Units to keep.
        model: The model. It is left as it is.
        example_inputs: See ``symmetries``.

    Raises:
        ValueError: If the space or a unit does not exist, no unit is kept, weights are quantised, or the model's code
            does not run with fewer units.
        VerificationError: If the smaller model differs from the masked one, for instance because a norm runs over the
            units.

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
    spaces = [space] if isinstance(space, str) else list(space)
    units = _checked(sym, spaces, keep)
    check_plain(model)
    rows = kept_rows(sym, spaces, units)
    wide = in_float64(model, example_inputs)
    wide = replace(wide, inputs=map_tensors(wide.inputs, _told))
    wanted = [wide.outputs(masked(sym, wide.model, rows))]
    with excluded(sym, wide.model, rows) as twin:
        wanted.append(wide.outputs(twin))
    error, said = float("inf"), ""
    small = _cut(sym, wide.model, rows)
    lengths = [
        (name.rpartition(".")[0], [*_lengths(sym.layouts[name].axes[axis], spaces, len(units))])
        for name, axes in rows.items()
        for axis in axes
    ]
    for changes in _choices(model, lengths):
        _set(small, changes)
        try:
            found = wide.outputs(small)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as failed:
            said = said or str(failed).partition("\n")[0]
        else:
            error = min(error, *(relative_error(one, found) for one in wanted))
        if error <= wide.rtol:
            pruned = _cut(sym, rewritable(sym, model), rows)
            _set(pruned, changes)
            _configure(pruned, small, {pair for _, pairs in lengths for pair in pairs}, wide)
            return pruned
        _set(small, [(module, name, new, old) for module, name, old, new in changes])
    if error == float("inf"):
        raise ValueError(
            f"model must run with {len(units)} units of {_named(spaces)}. Got {said.rstrip('.')}. Where its code works "
            "a size out of others, as D // h for the width of a head, keep that size in an attribute of the module."
        )
    raise VerificationError(
        f"units must contribute only to sums, so that pruning is masking. Got {_named(spaces)}, where "
        f"the pruned model differs by {error:.1e}: a norm runs over its units, or something chooses among them."
        f"{_REMOVE if spectral_norms(model) else ''}"
    )


def _told(x: Tensor) -> Tensor:
    """Random numbers if all are zeros, which prove nothing: a norm keeps zeros, whatever its units."""
    if not x.is_floating_point() or bool(x.any()):
        return x
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)


def _checked(sym: Symmetry, spaces: list[str], keep: Iterable[int] | Tensor) -> list[int]:
    """The checked units, sorted."""
    numbers = torch.as_tensor([*keep]).flatten()
    if len(numbers) and (numbers.dtype == torch.bool or numbers.is_floating_point()):
        kind = "a mask: pass mask.nonzero()[:, 0]" if numbers.dtype == torch.bool else f"{numbers.tolist()[:3]}"
        raise ValueError(f"keep must hold the numbers of units. Got {kind}.")
    units = sorted(numbers.tolist())
    if not spaces:
        raise ValueError("space must name at least one space. Got none.")
    for space in spaces:
        size = sym.space(space).size
        if not units or units[0] < 0 or units[-1] >= size or len(set(units)) < len(units):
            wrong = [k for k in units if not 0 <= k < size] or [k for k in sorted({*units}) if units.count(k) > 1]
            rule = f"keep must hold different units of {space!r}, from 0 to {size - 1}"
            raise ValueError(f"{rule}. Got {wrong[:8]}. On the command line, give others as --units.")
    return units


def _named(spaces: list[str]) -> str:
    return repr(spaces[0]) if len(spaces) == 1 else f"{spaces[0]!r} and {len(spaces) - 1} more"


def _set(model: nn.Module, changes: Iterable[Change]) -> None:
    for module, name, _, new in changes:
        setattr(model.get_submodule(module), name, new)


def _configure(pruned: nn.Module, small: nn.Module, lengths: set[tuple[int, int]], wide: Wide) -> None:
    """Write the new sizes into the configuration; if the class cannot express them, saving is refused."""
    if not is_configured(pruned):
        return
    own = wide.outputs(small)
    same = lambda built: relative_error(own, wide.outputs(built)) <= wide.rtol
    settings = fitting(small, lengths, same, next(pruned.parameters()).dtype)
    if settings is not None:
        write(pruned.config, settings)
        set_unsaveable(pruned, "")
        return
    others = misfits(small)
    set_unsaveable(
        pruned,
        f"model must have sizes that {type(pruned.config).__name__} can express, to be saved. Got others in "
        f"{', '.join(others[:3])}{', ...' if len(others) > 3 else ''}. Prune every layer alike (space takes "
        "several names), or save its state_dict() and prune again after loading.",
    )


def _cut(sym: Symmetry, model: nn.Module, rows: Rows) -> nn.Module:
    """A copy of the model with the chosen rows of its tensors, and with the sizes stored in torch's modules."""
    twin = rewritable(sym, model)
    names = {**{name: name for name in rows}, **{a: n for a, n in sym.aliases.items() if n in rows}}
    made: dict[str, Any] = {}
    for alias, name in names.items():
        place, _, last = alias.rpartition(".")
        module = twin.get_submodule(place)
        kept = rows[name].get(0) if last == "weight" else None
        for kind, size in ((nn.modules.conv._ConvNd, "groups"), (nn.GroupNorm, "num_groups")):
            if isinstance(module, kind) and isinstance(module.weight, Tensor) and kept is not None:
                whole = len(module.weight) // getattr(module, size)
                setattr(module, size, len(torch.unique(kept // whole)))  # groups in which at least one channel stays
        if name not in made:
            old = getattr(module, last)
            new = old.detach()
            for axis, some in rows[name].items():
                new = new.index_select(axis, some.to(new.device))
            made[name] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        setattr(module, last, made[name])
        _note_sizes(module)
    return twin


def _note_sizes(module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return
    for name, axis in (item for kind, names in _SIZES.items() if isinstance(module, kind) for item in names.items()):
        setattr(module, name, weight.shape[axis])
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.normalized_shape = tuple(weight.shape)
    if isinstance(module, nn.modules.conv._ConvNd):
        first, second = ("in_channels", "out_channels") if module.transposed else ("out_channels", "in_channels")
        setattr(module, first, weight.shape[0])
        setattr(module, second, weight.shape[1] * module.groups)


def _choices(model: nn.Module, lengths: Iterable[tuple[str, list[tuple[int, int]]]]) -> Iterator[list[Change]]:
    """Attributes that may have to change, in all modules of a class alike: all of them, none, then most of them.

    ``lengths`` give, for each axis, the module of its tensor, and old and new lengths of the axis and its factors.
    """
    sizes: dict[str, dict[int, set[int]]] = {}  # for the modules that hold the tensors, and those around them
    for own, all_ in lengths:
        for place, pairs in ((own, all_[:1]), (own.rpartition(".")[0], all_)):
            for old, new in pairs:
                sizes.setdefault(place, {}).setdefault(old, set()).add(new)
    found: dict[tuple[type, str, int, int], list[Change]] = {}
    for place, known in sorted(sizes.items()):
        module = model.get_submodule(place)
        noted = {} if type(module).__module__.startswith("torch.nn") or not place else vars(module)
        for name, value in noted.items():
            if type(value) is int and value in known:
                for new in sorted(known[value]):
                    if new != value:
                        found.setdefault((type(module), name, value, new), []).append((place, name, value, new))
    kinds = list(found.values())
    yield [change for kind in kinds for change in kind]
    yield []
    for count in range(len(kinds) - 1, 0, -1) if len(kinds) <= _MOST_ATTRIBUTES else ():
        yield from ([change for kind in chosen for change in kind] for chosen in combinations(kinds, count))


def _lengths(axis: Axis, spaces: Sequence[str], new: int) -> Iterator[tuple[int, int]]:
    """Old and new lengths of an axis, of its factors, and of products of adjacent factors."""
    units = torch.arange(new)
    here = [space for space in spaces if space in spaces_of([axis])]

    def left(part: Axis) -> int:
        rows = (axis_rows(part, space, units) for space in here if space in spaces_of([part]))
        return next(map(len, rows), axis_size(part))

    yield axis_size(axis), left(axis)
    if isinstance(axis, Product):
        sizes = [(axis_size(f), left(f)) for f in axis.factors]
        for start in range(len(sizes)):
            for stop in range(start + 1, len(sizes) + 1):
                yield tuple(prod(pair[k] for pair in sizes[start:stop]) for k in (0, 1))  # type: ignore[misc]
    inner = axis.factors if isinstance(axis, Product) else [p.axis for p in axis.parts] if isinstance(axis, Sum) else ()
    for part in inner:
        yield from _lengths(part, here, new) if set(here).intersection(spaces_of([part])) else ()


def masked(sym: Description, model: nn.Module, kept: Rows) -> nn.Module:
    """The model with the slices of all other units set to zero; running statistics and spectral norms stay."""
    twin = rewritable(sym, model)
    divisors = {name: norm.size for name, norm in spectral_norms(twin).items()}
    with torch.no_grad():
        for tensor, axis, gone in _gone(sym, twin, kept):
            tensor.index_fill_(axis, gone, 0)
        for name, norm in spectral_norms(twin).items():
            norm.u.mul_(divisors[name] / norm.size)  # else the remainder would be divided by its own norm
    return twin


@contextmanager
def excluded(sym: Description, model: nn.Module, kept: Rows) -> Iterator[nn.Module]:
    """The model in which removed units are never chosen by a softmax or top-k: their logits are minus infinity."""
    twin = rewritable(sym, model)
    columns: dict[int, Tensor] = {}
    for tensor, axis, gone in _gone(sym, twin, kept):
        with torch.no_grad():
            if tensor.ndim == 1:
                tensor.index_fill_(0, gone, -torch.inf)
            elif tensor.ndim == 2 and axis == 0:
                columns[tensor.data_ptr()] = gone
    with _Logits(columns):
        yield twin


class _Logits(TorchFunctionMode):
    """A mode in which some outputs of some linear maps are minus infinity."""

    def __init__(self, columns: dict[int, Tensor]) -> None:
        super().__init__()
        self._columns = columns

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        gone = self._columns.get(args[1].data_ptr()) if func is nn.functional.linear and len(args) > 1 else None
        return result if gone is None or len(args[1]) != result.shape[-1] else result.index_fill(-1, gone, -torch.inf)


def _gone(sym: Description, twin: nn.Module, kept: Rows) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Every tensor and axis with the rows to remove."""
    statistics = {name for norm in sym.batch_norms for name in (norm.mean, norm.variance)}
    statistics |= {name for norm in spectral_norms(twin).values() for name in (norm.u_name, norm.v_name)}
    live = tensors_of(twin)
    for name, axes in kept.items():
        for axis, rows in axes.items() if name not in statistics else ():
            every = torch.arange(live[name].shape[axis])
            yield live[name], axis, every[~torch.isin(every, rows)].to(live[name].device)


def fitting(
    small: nn.Module, lengths: Iterable[tuple[int, int]], same: Callable[[nn.Module], bool], dtype: torch.dtype
) -> tuple[Setting, ...] | None:
    """The settings with which the class of a pruned model builds it; ``None`` if they cannot express its sizes.

    ``small`` still has the configuration of the whole model, whose weights had ``dtype``; ``same`` says whether a model
    computes the same function. ``lengths`` are old and new lengths of axes and of their factors.
    """
    made = lambda settings: built(small, lambda config: write(config, settings))
    wanted, before = shapes(small), made(())
    pruned = {name for name in wanted if wanted[name] != before.get(name)}
    useful = []
    for setting in dict.fromkeys(_candidates(small.config, set(lengths))):
        alone = made((setting,))
        changed = {name for name in {*alone, *before} if alone.get(name) != before.get(name)}
        if not alone or (changed and changed <= pruned):
            useful.append(setting)
    for count in range(min(len(useful), _MOST) + 1):
        for chosen in combinations(useful, count):
            if made(chosen) == wanted and any(map(same, _rebuilt(small, chosen, dtype))):
                return chosen
    return None


def write(config: Any, settings: Iterable[Setting]) -> Any:
    """Write settings into a configuration, in place."""
    for path, name, value in settings:
        setattr(reduce(getattr, path, config), name, value)
    return config


def _candidates(config: Any, lengths: set[tuple[int, int]], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Settings equal to an old length, or left open, with each new length."""
    for name, value in vars(config).items():
        if name.startswith("_"):
            continue
        if hasattr(value, "to_dict"):
            yield from _candidates(value, lengths, (*path, name))
        elif type(value) is int or value is None:
            new = {b for a, b in lengths if a != b and (value is None or a == value)}
            yield from ((path, name, length) for length in sorted(new))


def _rebuilt(small: nn.Module, settings: tuple[Setting, ...], dtype: torch.dtype) -> Iterator[nn.Module]:
    """The model that a user gets by loading the pruned tensors into the configured class, also cast to a dtype.

    A cast model has rounded tables, such as those of rotary embeddings, which are not part of a state dict.
    """
    wide = next(small.parameters()).dtype
    for own in (wide, dtype):
        with seeded(0):
            model: nn.Module = type(small)(write(copy.deepcopy(small.config), settings))
        model.to(own).to(wide).load_state_dict(small.state_dict())
        yield model.train(small.training)
