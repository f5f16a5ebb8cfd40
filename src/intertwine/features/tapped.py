"""Hidden features batch by batch, with nothing left attached to the model, or of a whole data set in memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._evaluation import alone, check_module, evaluation_mode, unchanged, with_weights
from .._progress import track
from .activations import function_names, unwrap, watching, watching_functions
from .batches import call, device_of, length, peek, size
from .points import Point, Selector, choose, layers, select, selector_for


class Tapped:
    """A model whose hidden features can be read: call it on a batch inside a ``with`` block.

    Hooks exist only while a batch runs, whatever happens in it. Inside the block the model is in evaluation mode;
    afterwards every module has its former training flag. Features are copied when the module returns, so that a later
    in-place activation or ``+=`` cannot change them.

    Layers are names, ``name#k`` for the ``k``-th call of a module that runs more than once, or patterns such as
    ``"layer1.*"``. ``None`` takes the outputs of all nonlinearities, modules and functions, and the residual stream
    behind each of several equal blocks where no nonlinearity made it; in a model without any, all leaf modules that do
    more than pass on their input. ``outputs`` are as in :func:`intertwine.features.layers`. ``keep(name, features)``
    returns what to keep of a layer's features, by default a copy; it sees the live tensor and must not keep or change
    it. Batches go to the ``device``, by default the model's.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True))
        >>> with Tapped(model, ["0"]) as tapped:
        ...     features = tapped(torch.ones(2, 3))
        >>> torch.equal(features["0"], model[0](torch.ones(2, 3)))
        True
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | None = None,
        *,
        outputs: Selector | Mapping[str, Selector] | None = None,
        keep: Callable[[str, Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.points: tuple[Point, ...] = ()  # the chosen points; known from the first batch on
        check_module(model)
        self._model = unwrap(model)
        self._layers = layers
        self._outputs = outputs
        self._keep = keep or (lambda _, features: features.clone(memory_format=torch.contiguous_format))
        self._device = device_of(self._model) if device is None else torch.device(device)
        self._mode: Any = None

    def __enter__(self) -> Self:
        if self._mode is not None:
            raise RuntimeError("a tapped model must be entered once at a time. Got a second 'with' inside the first.")
        self._mode = evaluation_mode(self._model)
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        mode, self._mode = self._mode, None
        mode.__exit__(*error)

    def prepare(self, batch: Any) -> tuple[Point, ...]:
        """Find the points by a run on the first examples of ``batch``; the first call does this by itself."""
        self.points = choose(layers(self._model, batch, outputs=self._outputs), self._layers, self._model)
        return self.points

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """Run the model on a batch; return features by layer, ``(N, C, *S)`` or ``(N, T, C)`` for tokens, in order."""
        if self._mode is None:
            raise RuntimeError(
                "a tapped model must be called inside 'with tap(model, layers) as tapped:'. Got a call outside it."
            )
        if not self.points:
            self.prepare(batch)
        wanted = {(p.module, p.call): p.name for p in self.points}
        every = dict(self._model.named_modules())
        watched = {name: module for name, module in every.items() if any(name == m for m, _ in wanted)}
        examples, outputs = size(batch), self._outputs
        kept: dict[str, Tensor] = {}
        calls: Counter[str] = Counter()
        named = function_names(every)

        def keep(name: str, features: Tensor | None) -> None:
            if features is None or features.ndim < 2 or features.shape[0] != examples:
                got = "no floating-point tensor" if features is None else f"shape {tuple(features.shape)}"
                shape = f"(N, C, *S) with N = {examples} examples"
                raise ValueError(f"features of layer {name!r} must be {shape}. Got {got}.")
            kept[name] = self._keep(name, features.detach())

        def see(name: str, k: int, module: nn.Module, _: Any, output: Any) -> None:
            if (name, k) in wanted:
                keep(wanted[name, k], select(output, selector_for(name, k, outputs)))

        def see_function(caller: str, function: str, output: Tensor) -> None:
            name = named(caller, function)
            if name is not None:
                calls[name] += 1
                if (at := (name, calls[name] - 1)) in wanted:
                    keep(wanted[at], output)

        functions = any(point.function for point in self.points)
        beside = watching_functions(every, see_function) if functions else nullcontext()
        with alone(self._model), watching(watched, see), beside, torch.no_grad():
            call(self._model, batch, self._device)
        missing = [name for name in wanted.values() if name not in kept]
        if missing:
            raise RuntimeError(f"every layer must run on every batch. Got a batch on which {missing} did not run.")
        return {name: kept[name] for name in wanted.values()}


tap = Tapped
"""A model opened for reading: ``with tap(model, layers) as tapped: features = tapped(batch)``."""


@with_weights
def collect(
    model: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    *,
    outputs: Selector | Mapping[str, Selector] | None = None,
    max_examples: int | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> dict[str, Tensor]:
    """Hidden features of all examples, on the CPU.

    Everything is held in memory; :func:`intertwine.features.tap`, with the same arguments, streams instead.

    Raises:
        ValueError: If the loader is empty, ``max_examples`` is less than 1, or the features of a layer change shape
            between batches.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        >>> features = collect(model, torch.randn(10, 1, 4, 4).split(3))
        >>> {name: tuple(x.shape) for name, x in features.items()}
        {'1': (10, 4, 2, 2)}
    """
    if max_examples is not None and max_examples < 1:
        raise ValueError(f"max_examples must be at least 1. Got {max_examples}.")
    _, batches = peek(loader)
    parts: dict[str, list[Tensor]] = {}
    examples = 0
    with Tapped(model, layers, outputs=outputs, device=device) as tapped, unchanged(model):
        for batch in track(batches, "Collecting features", length(loader), progress):
            features = tapped(batch)
            room = None if max_examples is None else max_examples - examples
            for name, x in features.items():
                parts.setdefault(name, []).append(x[:room].cpu())
            examples += next(iter(features.values())).shape[0]
            if max_examples is not None and examples >= max_examples:
                break
    for name, chunks in parts.items():
        if len(shapes := {tuple(chunk.shape[1:]) for chunk in chunks}) > 1:
            raise ValueError(
                f"features of layer {name!r} must have one shape in all batches. Got {sorted(shapes)}. "
                "Pad or resize the inputs to one size."
            )
    return {name: torch.cat(chunks) for name, chunks in parts.items()}
