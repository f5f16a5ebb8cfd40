"""The points of a model where features can be read: names, shapes, calls; and which tensor of an output they are."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._evaluation import check_module, evaluating, unchanged
from .._nested import tensors_in
from .activations import function_names, is_activation, is_one_function, unwrap, watching, watching_functions
from .batches import call, device_of, head, size

Selector: TypeAlias = int | str | Callable[[Any], Any]
_PREFERRED = ("last_hidden_state", "hidden_states", "logits")  # in Hugging Face outputs, in this order

_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,  # batch and instance norm
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
_LAST = (nn.Linear, nn.Embedding, nn.MultiheadAttention)
_DRY_RUN = 2  # examples in the run that lists points


def select(output: Any, how: Selector | None = None) -> Tensor | None:
    """The features in a module's output; ``None`` if there are none.

    ``how`` is an index into a tuple, a key of a mapping (or the name of an attribute), or a function. ``None`` takes a
    tensor itself, the first floating-point tensor of a tuple, and from a mapping ``last_hidden_state``,
    ``hidden_states`` or ``logits`` before anything else.
    """
    if how is None:
        if isinstance(output, Mapping):
            output = [output[key] for key in _PREFERRED if key in output] + list(output.values())
        if isinstance(output, tuple | list):
            output = next((o for o in output if isinstance(o, Tensor) and o.is_floating_point()), None)
    elif callable(how):
        output = how(output)
    elif isinstance(output, Mapping):
        output = output.get(how)
    elif isinstance(how, str):
        output = getattr(output, how, None)
    else:
        output = output[how] if isinstance(output, tuple | list) and -len(output) <= how < len(output) else None
    return output if isinstance(output, Tensor) and output.is_floating_point() else None


def selector_for(module: str, call: int, outputs: Selector | Mapping[str, Selector] | None) -> Selector | None:
    """Selector of one call of a module: ``outputs`` is one selector for all, or a mapping by ``name#k`` or ``name``."""
    if not isinstance(outputs, Mapping):
        return outputs
    return outputs.get(f"{module}#{call}", outputs.get(module))


@dataclass(frozen=True)
class Reading:
    """Options for reading hidden features.

    Attributes:
        outputs: Which tensor of a tuple or mapping to read, for all layers or by name; see
            :func:`intertwine.features.layers`.
        channel_dim: Axis of the channels, for all layers or by name, if the guess of :func:`intertwine.features.layers`
            is wrong.
        max_examples: Use this many examples at most.
        memory: Bytes, or text such as ``"4 GiB"``: half for features, half for work. By default half of what is free.
    """

    outputs: Selector | Mapping[str, Selector] | None = None
    channel_dim: int | Mapping[str, int] | None = None
    max_examples: int | None = None
    memory: int | str | None = None


@dataclass(frozen=True)
class Point:
    """A place in a model's run where features can be read.

    Attributes:
        name: The module's name in ``named_modules()``, with ``#k`` for its ``k``-th call if it runs more than once. A
            nonlinearity that a module calls as a function adds the function's name: ``layer1.0.relu``.
        kind: The class of the module, or the name of the function.
        shape: Shape of one example's features, without the batch axis.
        channel_dim: The guessed channel axis of the features ``(N, C, *S)``, 1 or -1; see :func:`layers`.
        calls: Number of times the module runs in one forward pass.
        activation: Whether it is a nonlinearity.
        leaf: Whether the module contains no others.
        dtype: Type of the features.
        function: Whether it is the output of a function rather than of a module.
        copies: Whether the module returned its input, perhaps in another shape, as dropout does in evaluation mode.
        stream: Whether it is the residual stream behind one of several equal blocks: what a block returns in the shape
            of its input, where no nonlinearity made it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    channel_dim: int
    calls: int
    activation: bool
    leaf: bool
    dtype: torch.dtype = torch.float32
    function: bool = False
    copies: bool = False
    stream: bool = False

    @property
    def module(self) -> str:
        """The name without the call index."""
        return self.name.rsplit("#", 1)[0] if self.calls > 1 else self.name

    @property
    def call(self) -> int:
        """Index of this call among the module's calls, from 0."""
        return int(self.name.rsplit("#", 1)[1]) if self.calls > 1 else 0

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.shape[0 if self.channel_dim == 1 else -1]

    @property
    def size(self) -> int:
        """Numbers in one example's features."""
        return int(torch.Size(self.shape).numel())


def layers(
    model: nn.Module, batch: Any, *, outputs: Selector | Mapping[str, Selector] | None = None
) -> tuple[Point, ...]:
    """List every point of a model where features can be read, in the order in which a run reaches them.

    The model runs once, on the first two examples, in evaluation mode and without gradients. A module is listed if its
    output holds a non-empty floating-point tensor with the batch first; so is a nonlinearity that a module calls as a
    function.

    The channel axis is a guess. Convolutions, batch, instance and group norms and pooling keep channels on axis 1;
    linear layers, embeddings, attention and layer norms keep them last; any other module takes the axis of the latest
    of these with an output of the same shape. Failing that, rank 3 is read as tokens ``(N, T, C)``, everything else as
    ``(N, C, *S)``. Functions that compare layers let you override it.

    A batch is a tensor, a tuple ``(inputs, labels, ...)`` or a dict of keyword arguments. If a module returns a tuple
    or mapping, ``outputs`` says which tensor to read, by an index, a key or a function, for all layers or by name; by
    default the first floating-point tensor, and ``last_hidden_state`` before others.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> relu = nn.ReLU()
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), relu, nn.Conv2d(8, 4, 3), relu)
        >>> for point in layers(model, torch.zeros(2, 3, 8, 8)):
        ...     print(point.name, point.kind, point.shape, point.channel_dim)
        0 Conv2d (8, 6, 6) 1
        1#0 ReLU (8, 6, 6) 1
        2 Conv2d (4, 4, 4) 1
        1#1 ReLU (4, 4, 4) 1
         Sequential (4, 4, 4) 1
    """
    check_module(model)
    model = unwrap(model)
    if (total := size(batch)) > _DRY_RUN:
        with suppress(Exception):  # a model may need its whole batch; if it is broken, the run below tells how
            return _listed(model, head(batch, _DRY_RUN), _DRY_RUN, outputs)
    return _listed(model, batch, total, outputs)


def choose(points: Sequence[Point], wanted: str | Sequence[str] | None, model: nn.Module) -> tuple[Point, ...]:
    """Points chosen by names and patterns, in their order, without repetition (see :class:`Tapped`)."""
    if wanted is None:
        found = [p for p in points if p.activation or p.stream] or [p for p in points if p.leaf and not p.copies]
        if not found:
            raise ValueError(f"model must have a module with features to read. Got none in {type(model).__name__}.")
        return tuple(found)
    if not isinstance(wanted, Iterable):
        raise ValueError(f"layers must be a name, a pattern or several of them. Got {wanted!r}.")
    by_name = {p.name: p for p in points}
    chosen: dict[str, Point] = {}
    for name in [wanted] if isinstance(wanted, str) else wanted:
        matches = [by_name[name]] if name in by_name else [p for p in points if fnmatchcase(p.name, name)]
        if not matches:
            raise ValueError(_why_missing(name, points, dict(unwrap(model).named_modules())))
        chosen |= {p.name: p for p in matches}
    if not chosen:
        raise ValueError("layers must name at least one layer. Got an empty list. Leave it out for the default layers.")
    return tuple(chosen.values())


def _listed(
    model: nn.Module, batch: Any, examples: int, outputs: Selector | Mapping[str, Selector] | None
) -> tuple[Point, ...]:
    """Run the model once and list its points."""
    axes: dict[tuple[int, ...], int] = {}  # the latest certain channel axis, by shape
    every = dict(model.named_modules())
    named = function_names(every)
    calls: Counter[str] = Counter()
    seen: list[Point] = []
    nonlinear: set[str] = set()  # modules in whose own code a nonlinearity ran
    blocks, latest = _repeated(every), torch.empty(0)  # what the latest nonlinearity or block returned

    def note(name: str, tensor: Tensor | None, module: nn.Module | None, **facts: Any) -> None:
        calls[name] += 1
        plain = tensor is not None and tensor.ndim >= 2 and tensor.is_floating_point()
        if tensor is not None and plain and tensor.shape[0] == examples and 0 not in tensor.shape[1:]:
            shape = tuple(tensor.shape)
            axes[shape] = _axis_by_kind(module) or axes.get(shape, -1 if len(shape) == 3 else 1)
            axis = 1 if len(shape) == 2 else axes[shape]
            seen.append(Point(name, shape=shape[1:], channel_dim=axis, dtype=tensor.dtype, calls=calls[name], **facts))

    def see(name: str, k: int, module: nn.Module, given: Any, output: Any) -> None:
        features = select(output, selector_for(name, k, outputs))
        simple, leaf = is_one_function(module), next(module.children(), None) is None
        acts = is_activation(module) or (bool(name) and simple and name in nonlinear)
        inputs = list(tensors_in(given))
        copies = simple and not acts and features is not None and any(_same(features, x) for x in inputs)
        nonlocal latest
        stream = name in blocks and any(f"{one}.".startswith(f"{name}.") for one in nonlinear)
        if features is not None:
            stream = stream and any(features.shape == x.shape for x in inputs) and not _same(features, latest)
            latest = features if stream else latest
        note(name, features, module, kind=type(module).__name__, activation=acts, leaf=leaf, copies=copies,
             stream=stream)  # fmt: skip

    def see_function(caller: str, function: str, output: Tensor) -> None:
        nonlocal latest
        latest = output  # kept, so that no other tensor reuses its memory
        nonlinear.add(caller)
        name = named(caller, function)
        if name is not None:
            note(name, output, None, kind=function, activation=True, leaf=True, function=True)

    functions = watching_functions(every, see_function)
    with evaluating(model), unchanged(model), watching(every, see), functions, torch.no_grad():
        call(model, batch, device_of(model))
    return tuple(
        replace(p, name=f"{p.name}#{p.calls - 1}", calls=calls[p.name]) if calls[p.name] > 1 else p for p in seen
    )


def _repeated(every: Mapping[str, nn.Module]) -> set[str]:
    """Names of modules that contain others and stand in one list with others of their class."""
    kinds = {name: (name.rpartition(".")[0], type(module)) for name, module in every.items() if name}
    counts = Counter(kinds.values())
    lists = {name for name, module in every.items() if isinstance(module, nn.Sequential | nn.ModuleList)}
    alike = (name for name, kind in kinds.items() if counts[kind] > 1 and kind[0] in lists)
    return {name for name in alike if next(every[name].children(), None) is not None}


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory, perhaps in different shapes."""
    strided = x.layout == y.layout == torch.strided and not x.is_meta
    return strided and x.numel() == y.numel() and x.data_ptr() == y.data_ptr()


def _why_missing(name: str, points: Sequence[Point], known: Mapping[str, nn.Module]) -> str:
    """Explain why no point has this name."""
    listing = lambda names: ", ".join(repr(n) for n in names[:8]) + (", ..." if len(names) > 8 else "")
    if calls := [p.name for p in points if p.calls > 1 and p.module == name]:
        return (
            f"layers must say which call of a module is meant. Got {name!r}, which runs {len(calls)} times. "
            f"Use one of {listing(calls)}."
        )
    if name in known:
        return (
            f"layers must give features whose first axis is the batch. Got {name!r} ({type(known[name]).__name__}), "
            "which did not run on the first examples, or returns no such tensor or an empty one. "
            "List what can be read with intertwine.features.layers(model, batch)."
        )
    names = [p.name for p in points]
    near = get_close_matches(name, names, n=4, cutoff=0.5) or names[:4]
    return f"layers must be names of modules that run. Got {name!r}. Close names: {listing(near)}."


def _axis_by_kind(module: nn.Module | None) -> int | None:
    """Channel axis of what one of torch's modules returns, 1 or -1; ``None`` for any other module."""
    if isinstance(module, _FIRST):
        return 1
    # Subclasses of LayerNorm often permute axes around it, so only the class itself is certain.
    over_one = type(module) in (nn.LayerNorm, nn.RMSNorm) and len(module.normalized_shape) == 1  # type: ignore[union-attr, arg-type]
    return -1 if over_one or isinstance(module, _LAST) else None
