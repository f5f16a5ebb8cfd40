"""Action of a symmetry on weights: new tensors, the same function.

Also the elements that a given network admits: a batch norm without a gain bounds how far its inputs may shrink.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._attributes import Kept, forget
from .._evaluation import OperationMode, alone, check_module, copied, in_usual_mode
from .._io.lazy import LazyState, folders_of, headers_of
from .._nested import map_tensors
from .._words import counted
from ..errors import PathWarning
from .blocks import Block, align, blocks, map_leaves, parent_dims, permuted, unit_rows
from .description import Description
from .spaces import BatchNormTensors, Fixed, Layout
from .transformation import Transformation, with_parts

__all__ = ["admissible"]

S = TypeVar("S", bound=Description)
_HELD = 1 << 24  # numbers of moved tensors that a run keeps, for tensors that are read repeatedly


@in_usual_mode
def act(sym: Description, g: Transformation, model: nn.Module) -> nn.Module:
    """A copy of ``model`` with new weights and the same function.

    A tensor axis that carries a space becomes ``new[i] = scale_i * sign_i * old[p[i]]``, then is multiplied by the
    matrix of a linear space or by its inverse transpose (Proposition 3.4). Batch norm follows v2 E.47 (v1 E.26) with
    ``v' = a^2 (v + eps) - eps``, so that the function is exactly the same in eval mode; where that is negative, ``v``
    stays and the gain is divided by ``a`` (``kept_variances`` lists the channels).

    Args:
        sym: The symmetry of the model's architecture.
        g: One of its elements. An element of another symmetry, or tensors that do not fit, raise a ``ValueError``.
        model: The model. It is left as it is.

    Returns:
        A new module. Tied parameters stay tied; dtypes and devices stay; permutations move bits exactly. Tensors that
        the model caches between runs (``sym.caches``) are left out. If the path depends on the data, a ``PathWarning``
        says what is certified.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(model, torch.zeros(2, 4))
        >>> twin = act(sym, sym.random(seed=1), model)
        >>> iw.testing.assert_same_function(model, twin, torch.randn(5, 4))
    """
    check_module(model)
    if sym.path_only:
        warnings.warn(f"twin is certified for {sym.certified} only", PathWarning, stacklevel=3)
    check(sym, g, tensors_of(model), sym.layouts)
    check_ties(sym, tensors_of(model), written=True)
    twin = rewritable(sym, model)
    act_(sym, g, tensors_of(twin))
    return twin


def act_lazily(sym: Description, g: Transformation, state: Mapping[str, Tensor]) -> LazyState:
    """A state dict moved by ``g`` lazily: each tensor when it is asked for; until then only headers are read."""
    check_headers(sym, state)
    check_ties(sym, state)

    def tensor(name: str) -> Tensor:
        origin = sym.aliases.get(name, name)
        new = moved(sym, g, state, [origin]) if origin in sym.layouts and origin in state else {}
        return new[origin] if origin in new else state[name]

    return LazyState({name: partial(tensor, name) for name in state}, folders_of(state))


def rewritable(sym: Description, model: nn.Module) -> nn.Module:
    """A copy of a model, as ``copied`` makes it, ready for new weights: caches of the old weights are left out."""
    twin = copied(model)
    forget(twin, sym.caches)
    return twin


@contextmanager
def acting(sym: Description, g: Transformation, model: nn.Module) -> Iterator[None]:
    """Run ``model`` with the weights of ``act(sym, g, model)``, holding only few of them in memory at once.

    A tensor is moved when an operation reads it. Caches of the weights are recomputed, and restored at the end.
    """
    with alone(model):
        kept = Kept(model)
        forget(model, sym.caches)
        try:
            with _Moved(sym, g, model):
                yield
        finally:
            kept.restore()


class _Moved(OperationMode):
    """A mode in which operations read a model's tensors as moved by an element."""

    def __init__(self, sym: Description, g: Transformation, model: nn.Module) -> None:
        super().__init__()
        self._sym, self._g, self._state = sym, g, tensors_of(model)
        check(sym, g, self._state, sym.layouts)
        origins = {**{name: name for name in sym.layouts}, **sym.aliases}
        self._names = {_geometry(self._state[n]): origin for n, origin in origins.items() if n in self._state}
        self._held: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_tensors((args, kwargs or {}), self._read)
        return func(*args, **kwargs)

    def _read(self, x: Tensor) -> Tensor:
        name = self._names.get(_geometry(x)) if x.layout == torch.strided and x.numel() else None
        if name is None:
            return x
        if name not in self._held:
            new = dict(_moved(self._sym, self._g, self._state, [name])).get(name, x)
            if new is x or sum(t.numel() for t in self._held.values()) + new.numel() > _HELD:
                return new
            self._held[name] = new
        return self._held[name]


def _geometry(x: Tensor) -> tuple[object, ...]:
    """Location and layout of a tensor in memory."""
    return x.device, x.data_ptr(), x.shape, x.stride(), x.dtype


def act_(sym: Description, g: Transformation, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Apply ``g`` to the tensors of a state dict, in place.

    Args:
        sym: The symmetry of the architecture.
        g: One of its elements.
        state_dict: Parameters and buffers by name. Their storage is overwritten, so the state dict of a live model
            changes the model. Nothing is written if anything does not fit.
    """
    norms = {n for norm in sym.batch_norms for n in (norm.variance, norm.weight)}
    others = [name for name in sym.layouts if name not in norms]
    check(sym, g, state_dict, sym.layouts)
    check_ties(sym, state_dict, written=True)
    first = dict(_moved(sym, g, state_dict, [name for name in sym.layouts if name in norms]))  # all that may be refused
    for name, tensor in chain(first.items(), _moved(sym, g, state_dict, others)):  # the others one at a time
        with torch.no_grad():
            state_dict[name].copy_(tensor)
    return state_dict


def moved(
    sym: Description, g: Transformation, state: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The tensors that ``g`` changes, transformed; the given ones are left as they are.

    Returns:
        New tensors by name. Tied names (aliases) that occur in ``state`` appear too, sharing the new tensor. A variance
        without a gain that would become negative is refused with a ``ValueError``.
    """
    wanted = list(sym.layouts) if names is None else list(names)
    check(sym, g, state, wanted)
    return dict(_moved(sym, g, state, wanted))


def _moved(
    sym: Description, g: Transformation, state: Mapping[str, Tensor], wanted: Iterable[str]
) -> Iterator[tuple[str, Tensor]]:
    """As ``moved``, tensor by tensor; only variances are checked."""
    active = {name for name, e in g.elements.items() if not e.is_identity(atol=0.0)}
    norms = {n: norm for norm in sym.batch_norms for n in (norm.variance, norm.weight) if n is not None}
    for name in wanted:
        layout = sym.layouts[name]
        if not active & layout.spaces:
            continue
        with torch.no_grad():
            norm = norms.get(name)
            if norm is not None and name == norm.variance:
                new, negative, _ = _new_variance(sym, g, state, norm)
                if norm.weight is None and bool(negative.any()):
                    raise ValueError(
                        f"variance must stay positive where a batch norm has no gain to take the scale. Got {name}: "
                        "use smaller scales, or symmetry.admissible(sym, g, state)."
                    )
            else:
                old = state[name]
                new = transform(old, layout, g)
                new = new.clone() if new.data_ptr() == old.data_ptr() else new
            if norm is not None and name == norm.weight:
                _, negative, squares = _new_variance(sym, g, state, norm)
                factor = torch.where(negative, squares.rsqrt(), torch.ones_like(squares))
                new = new * factor.to(state[norm.variance].dtype)
        yield name, new
        yield from ((alias, new) for alias, origin in sym.aliases.items() if origin == name and alias in state)


def transform(tensor: Tensor, layout: Layout, g: Transformation) -> Tensor:
    """``tensor`` moved by ``g`` along every axis of its layout; without scales and matrices, bit for bit.

    What ``g`` leaves as it is shares memory with the given tensor.
    """
    result = tensor
    for block in blocks(layout):
        if not block.carried:
            continue
        piece = transform_block(block.read(tensor), block, g)
        if result is tensor and any(rows is not None for rows in block.rows):
            result = tensor.clone()
        result = block.write(result, piece)
    return result


def transform_block(x: Tensor, block: Block, g: Transformation) -> Tensor:
    """One block moved by ``g``: gathered, scaled, flipped, multiplied by matrices."""
    spaces = block.spaces
    dtype, work = x.dtype, torch.float64 if x.dtype == torch.float64 else torch.float32
    given, x = x, permuted(x, spaces, g.elements)
    for dim, leaf in block.carried:
        e = g[leaf.space]
        dims = parent_dims(e, dim, spaces)
        factor, matrix = e.diagonal(leaf), e.mixing(leaf)
        if factor is not None:
            factor, wide = align(factor, dims, x.ndim).to(x.device, work), x.to(work)
            x = wide * factor if wide is given else wide.mul_(factor)
        if matrix is not None:
            x = multiply(x.to(work), matrix.to(x.device, work), dims)
    return x.to(dtype)


def act_on_features(
    sym: Description, g: Transformation, features: Tensor, like: tuple[str, int], dim: int = 1, dual: bool = False
) -> Tensor:
    """Hidden features of ``model``, transformed into those of ``act(sym, g, model)`` (Proposition 3.4).

    Pre-activation features transform by ``A_m``, as the axis of the tensor that *writes* them (``("0.bias", 0)``);
    post-activation ones by ``phi(A_m)``, as the inverse transpose of the axis that *reads* them (``("2.weight", 1)``
    with ``dual=True``); outputs of a batch norm as its gain, ``pi(A_m) diag(c_m)``.

    Args:
        sym: The symmetry of the architecture.
        g: One of its elements.
        features: Hidden features, ``(N, C, *S)``.
        like: Name of a tensor and one of its axes.
        dim: The channel dimension of ``features``.
        dual: Whether that axis reads the features rather than writes them.

    Raises:
        ValueError: If the axis depends on other axes of its tensor, or the sizes differ.
    """
    name, axis = like
    if name not in sym.layouts or not 0 <= axis < len(sym.layouts[name].axes):
        raise ValueError(f"like must name a tensor of the symmetry and one of its axes. Got {like!r}.")
    layout = Layout((sym.layouts[name].axes[axis],))
    (size,) = layout.shape
    x = features.movedim(dim, 0)
    if x.shape[0] != size:
        raise ValueError(f"features must have {size} channels like {like!r}. Got shape {tuple(features.shape)}.")
    (own,) = map_leaves(layout, lambda leaf: leaf.dual).axes if dual else layout.axes
    rows = x.reshape(size, -1)
    return transform(rows, Layout((own, Fixed(rows.shape[1], "examples"))), g).clone().reshape(x.shape).movedim(0, dim)


def kept_variances(sym: Description, g: Transformation, state: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Channels (in the order after ``g``) whose running variance would become negative and is kept, by variance name.

    In these channels the gain is divided by ``a`` instead.
    """
    present = (norm for norm in sym.batch_norms if norm.variance in state)
    norms = ((norm.variance, _new_variance(sym, g, state, norm)[1]) for norm in present)
    return {name: kept.nonzero().flatten().tolist() for name, kept in norms if bool(kept.any())}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a model under all of their names: the live tensors, not copies."""
    check_module(model)
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in named}


def write(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Overwrite parameters and buffers of a model by name, in place."""
    own = tensors_of(model)
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
    return model


def check(sym: Description, g: Transformation, state: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Refuse tensors that do not fit before anything is changed; tensors read on demand are checked by their reader."""
    have = {name: e.group.n for name, e in g.elements.items()}
    want = {space.name: space.size for space in sym.spaces}
    if have != want:
        differ = [name for name in {**want, **have} if want.get(name) != have.get(name)]
        name, size, other = differ[0], want.get(differ[0]), have.get(differ[0])
        said = lambda n: "no such space" if n is None else counted(n, "unit")
        more = f", and {counted(len(differ) - 1, 'other space')} that {'differs' if len(differ) == 2 else 'differ'}"
        raise ValueError(
            f"g must be an element of this symmetry, with {said(size)} in {name!r}. Got {said(other)}"
            f"{more if len(differ) > 1 else ''}: draw it from this symmetry."
        )
    gains = {norm.weight: norm.variance for norm in sym.batch_norms}
    if isinstance(state, dict):
        check_headers(sym, state, [n for name in names for n in (name, gains.get(name)) if n is not None])


def check_headers(sym: Description, state: Mapping[str, Tensor], names: Iterable[str] | None = None) -> None:
    """Refuse tensors of another architecture, and non-real tensors that would move; of files only headers are read."""
    headers, wanted = headers_of(state), list(sym.layouts if names is None else names)
    for name in wanted:
        if name not in headers:
            raise ValueError(f"state must hold every tensor of the symmetry. Got none named {name!r}.")
        if headers[name][0] != (size := sym.layouts[name].shape):
            raise ValueError(f"{name} must have shape {size}. Got {headers[name][0]}: another architecture.")
    for name in wanted:
        multiplied = any(any(x.scale) or any(x.sign) or x.variance for x in sym.layouts[name].leaves)
        if multiplied and not headers[name][1].is_floating_point:
            found = str(headers[name][1]).removeprefix("torch.")
            raise ValueError(f"{name} must hold real numbers to be moved. Got {found}: convert or dequantise it first.")


def check_ties(sym: Description, state: Mapping[str, Tensor], written: bool = False) -> None:
    """Refuse different tensors where the symmetry has one, and, if ``written``, a tied tensor where it has two."""
    for alias, name in sym.aliases.items():
        x, y = (state.get(n) for n in (alias, name))
        if x is not None and y is not None and x.data_ptr() != y.data_ptr() and not torch.equal(x, y):
            raise ValueError(
                f"{alias} and {name} must be equal, since they are one tensor in the model of the symmetry. Got "
                "two that differ: find the symmetries of the model that they come from."
            )
    held: dict[tuple[object, ...], str] = {}
    for name in sym.layouts if written else ():
        other = held.setdefault(_geometry(state[name]), name) if state[name].data_ptr() else name
        if other != name:
            raise ValueError(
                f"{other} and {name} must be two tensors, as in the model of the symmetry. Got one tied tensor: find "
                "the symmetries of the model that it comes from."
            )


def check_states(sym: S | None, **given: object) -> tuple[S, list[Mapping[str, Tensor]]]:
    """The symmetry and the given state dicts, checked to be of its code; a module beside one is a ``TypeError``."""
    states: list[Mapping[str, Tensor]] = [x for x in given.values() if isinstance(x, Mapping)]
    if sym is None or len(states) < len(given):
        for name, model in given.items():
            check_module(model, name)
    assert sym is not None
    for state in states:
        check_headers(sym, state)
        check_ties(sym, state)
    return sym, states


def multiply(x: Tensor, matrix: Tensor, dims: list[int]) -> Tensor:
    """Multiply ``x`` along its dimension ``dims[-1]`` by ``matrix``, one for each unit along ``dims[:-1]``."""
    order = [*dims, *(d for d in range(x.ndim) if d not in dims)]
    rest = [x.shape[d] for d in order[len(dims) :]]
    flat = matrix @ unit_rows(x, dims)
    return flat.reshape(*flat.shape[:-1], *rest).permute([order.index(d) for d in range(x.ndim)])


def _new_variance(
    sym: Description, g: Transformation, state: Mapping[str, Tensor], norm: BatchNormTensors
) -> tuple[Tensor, Tensor, Tensor]:
    """The new running variance, the channels that keep the old one, and ``a^2``, all in the new order of channels."""
    layout, old = sym.layouts[norm.variance], state[norm.variance]
    squares = transform(torch.ones_like(old, dtype=torch.float64), layout, g)
    order = g.restrict(kinds={"permutation"})
    placed = transform(old, layout, order)
    new = squares * (placed.to(torch.float64) + norm.eps) - norm.eps
    negative = new < 0
    exact = (squares == 1) | negative  # keep the bits wherever nothing changes
    return torch.where(exact, placed, new.to(old.dtype)), negative, squares


def admissible(sym: Description, g: Transformation, state: Mapping[str, Tensor]) -> Transformation:
    """``g`` without those scales that a batch norm without a gain cannot follow, so that ``act`` accepts it.

    ``v' = a^2 (v + eps) - eps`` must not be negative, so nearly dead channels cannot shrink by much. Where such a norm
    has a channel that cannot follow, units that would shrink keep their scale.
    """
    gainless = {norm.variance for norm in sym.batch_norms if norm.weight is None}
    bounded = [sym.layouts[name] for name in kept_variances(sym, g, state) if name in gainless]
    for leaf in (leaf for layout in bounded for leaf in layout.leaves):
        factor = g[leaf.space].diagonal(leaf)
        if factor is not None:
            g = with_parts(g, leaf.space, scales=torch.where(factor < 1, 0.0, g[leaf.space].scales))
    return g
