"""Streaming: hidden features batch by batch, with nothing left attached to the model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._evaluation import alone, check_module, evaluation_mode
from ._hooks import modules, unwrap, watching
from .activations import function_names, watching_functions
from .batches import call, device_of, size
from .points import Point, choose, layers
from .reading import Selector, select, selector_for


def _copy(_: str, features: Tensor) -> Tensor:
    return features.clone(memory_format=torch.contiguous_format)


class Tapped:
    """A model whose hidden features can be read: call it on a batch inside a ``with`` block.

    Hooks exist only while a batch runs, whatever happens in it. Inside the block the model is in evaluation mode;
    afterwards every module has the training flag that it had. Features are copied when the module returns, so that a
    later in-place activation or ``+=`` cannot change them.

    Args:
        model: Any module, on any device; batches are moved to it.
        layers: Layer names, ``name#k`` for the ``k``-th call of a module that runs more than once, or patterns such as
            ``"layer1.*"``. ``None`` takes what all nonlinearities return, modules and functions, and the residual
            stream behind each of several equal blocks where no nonlinearity made it; in a model without any, all leaf
            modules that do more than hand on what they were given.
        outputs: Which tensor of a tuple or mapping to read; see :func:`intertwine.features.layers`.
        keep: What to keep of the features of a layer, ``keep(name, features)``; it sees the live tensor and must not
            keep or change it. By default a copy.
        device: Where batches go; by default where the model is.

    Attributes:
        points: The chosen points; known from the first batch on.

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
        keep: Callable[[str, Tensor], Tensor] = _copy,
        device: torch.device | str | None = None,
    ) -> None:
        self.points: tuple[Point, ...] = ()
        check_module(model)
        self._model = unwrap(model)
        self._layers = layers
        self._outputs = outputs
        self._keep = keep
        self._device = device_of(self._model) if device is None else torch.device(device)
        self._mode: Any = None

    def __enter__(self) -> Self:
        if self._mode is not None:
            raise RuntimeError("a tapped model must be entered once at a time. Got a second 'with' inside the first.")
        self._mode = evaluation_mode(self._model)
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mode, self._mode = self._mode, None
        mode.__exit__(kind, error, trace)

    def prepare(self, batch: Any) -> tuple[Point, ...]:
        """Find the points by a run on the first examples of ``batch``; the first call does this by itself."""
        self.points = choose(layers(self._model, batch, outputs=self._outputs), self._layers, self._model)
        return self.points

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """Run the model on a batch: layer names to features, ``(N, C, *S)`` or ``(N, T, C)`` for tokens, in order."""
        if self._mode is None:
            raise RuntimeError(
                "a tapped model must be called inside 'with tap(model, layers) as tapped:'. Got a call outside it."
            )
        if not self.points:
            self.prepare(batch)
        wanted = {(p.module, p.call): p.name for p in self.points}
        every = modules(self._model)
        watched = {name: module for name, module in every.items() if any(name == m for m, _ in wanted)}
        examples, outputs = size(batch), self._outputs
        kept: dict[str, Tensor] = {}

        def see(name: str, k: int, module: nn.Module, _: Any, output: Any) -> None:
            if (name, k) in wanted:
                features = select(output, selector_for(name, k, outputs))
                kept[wanted[name, k]] = self._read(wanted[name, k], features, examples)

        def see_function(caller: str, function: str, output: Tensor) -> None:
            name = named(caller, function)
            if name is not None:
                k = calls[name]
                calls[name] += 1
                if (name, k) in wanted:
                    kept[wanted[name, k]] = self._read(wanted[name, k], output, examples)

        calls: Counter[str] = Counter()
        named = function_names(every)
        functions = any(point.function for point in self.points)
        beside = watching_functions(every, see_function) if functions else nullcontext()
        with alone(self._model), watching(watched, see), beside, torch.no_grad():
            call(self._model, batch, self._device)
        missing = [name for name in wanted.values() if name not in kept]
        if missing:
            raise RuntimeError(f"every layer must run on every batch. Got a batch on which {missing} did not run.")
        return {name: kept[name] for name in wanted.values()}

    def _read(self, name: str, features: Tensor | None, examples: int) -> Tensor:
        if features is None or features.ndim < 2 or features.shape[0] != examples:
            got = "no floating-point tensor" if features is None else f"shape {tuple(features.shape)}"
            raise ValueError(f"features of layer {name!r} must be (N, C, *S) with N = {examples} examples. Got {got}.")
        return self._keep(name, features.detach())


def tap(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    *,
    outputs: Selector | Mapping[str, Selector] | None = None,
    device: torch.device | str | None = None,
) -> Tapped:
    """Open a model for reading its hidden features, with the arguments of :class:`Tapped`.

    Use it as ``with tap(model, layers) as tapped: features = tapped(batch)``.
    """
    return Tapped(model, layers, outputs=outputs, device=device)
