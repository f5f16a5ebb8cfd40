"""Exclusive use of a model by one thread: running it in evaluation mode, watching, copying or briefly changing it.

A run is watched through hooks and flags on the model itself, so two threads on one model would disturb each other.
Every module has a lock. Whoever runs or copies a model holds the locks of all its modules, taken in one order, so
models that share a part exclude each other too. Locks are held for one run, or for one pass over data that changes the
model. Nobody takes a second model's locks while holding those of a first, so no two threads can wait for each other.
"""

import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from threading import Lock, RLock
from typing import Any, ParamSpec, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from ._attributes import Kept, unattached
from ._nested import map_tensors, tensors_in

M = TypeVar("M", bound=nn.Module)
N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


class OperationMode(TorchDispatchMode):
    """Base of the dispatch modes that see every operation on tensors.

    Torch keeps its compiler away from what a mode does, and imports the compiler to do so, which takes two seconds.
    Here the compiler is kept away only if it is already imported.
    """

    _kept_off = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Self:
        kind: Any = type(self)
        if "torch._dynamo" in sys.modules and not kind._kept_off:
            kind.__torch_dispatch__, kind._kept_off = torch._disable_dynamo(kind.__torch_dispatch__), True
        return super().__enter__()


def check_module(model: object, name: str = "model") -> None:
    """Refuse anything that is not a module."""
    if not isinstance(model, nn.Module):
        got = repr(str(model)) if isinstance(model, str | Path) else type(model).__name__
        raise TypeError(f"{name} must be a torch.nn.Module. Got {got}.{_instead(model)}")


def without_weights(model: object) -> bool:
    """Whether a module, or a state dict, has tensors on the meta device: shapes without numbers."""
    if isinstance(model, nn.Module):
        return any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    return isinstance(model, MutableMapping) and any(t.is_meta for t in tensors_in(dict(model)))


def _instead(model: object) -> str:
    """Advice on how to get a module from what was given."""
    if isinstance(model, Mapping):
        return " It is a state dict: build the model and call model.load_state_dict(...) first."
    if not isinstance(model, str | Path):
        return ""
    if Path(model).suffix == ".safetensors":
        return " Build the model and call model.load_state_dict(safetensors.torch.load_file(path)) first."
    if Path(model).suffix in (".pt", ".pth", ".bin", ".ckpt"):
        return " Build the model and call model.load_state_dict(torch.load(path, weights_only=True)) first."
    return f" Load the model first, such as by transformers.AutoModel.from_pretrained({str(model)!r})."


@dataclass(eq=False)
class _Part:
    """State of one module: its lock, and how many blocks want it in evaluation mode."""

    module: weakref.ref[nn.Module]
    lock: Any = field(default_factory=RLock)
    users: int = 0
    training: bool = False  # its flag before the first of these blocks


# Keyed by id: a module that defines equality may lose its hash. An entry goes with its module, before its id is reused.
_parts: dict[int, _Part] = {}


def in_usual_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a public function: turns off inference mode, autocast and ``no_grad``, whatever the caller set.

    Inside them torch records other operations, computes in half precision, or has no gradients. Tensors made in
    inference mode are cloned, since no gradient flows through them. Includes ``with_weights``.
    """
    function = with_weights(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as modes:
            modes.enter_context(torch.inference_mode(False))  # this allows gradients, too
            for device in _AUTOCAST:
                if torch.is_autocast_enabled(device):
                    modes.enter_context(torch.autocast(device, enabled=False))
            given = (*args, *kwargs.values())  # read-only mappings may load tensors on request
            held = [x for x in given if isinstance(x, MutableMapping) or not isinstance(x, Mapping)]
            if any(x.is_inference() for x in tensors_in(held)):
                args, kwargs = map_tensors((args, kwargs), torch.clone)
            return function(*args, **kwargs)

    return called


def with_weights(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that turns torch's error into a clear one where a model on the meta device lacks weights."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            given = signature(function).bind_partial(*args, **kwargs).arguments
            empty = next((name for name, x in given.items() if without_weights(x)), None)
            if empty is None or not isinstance(error.__cause__ or error, NotImplementedError | RuntimeError):
                raise
            raise ValueError(
                f"{empty} must hold weights. Got a model on the meta device: load a checkpoint into it first."
            ) from error

    return called


@contextmanager
def alone(*models: nn.Module) -> Iterator[None]:
    """Keep other threads of this library from running, watching or copying the models, or any part of them."""
    parts = {id(module): module for model in models for module in model.modules()}
    with ExitStack() as held:
        for key in sorted(parts):
            held.enter_context(_part(parts[key]).lock)
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for this thread alone; afterwards every module has its former training flag.

    The flags are set one by one: ``model.eval()`` may be overridden to do more, which could not be undone.
    """
    with alone(model):
        flags = [(module, module.training) for module in model.modules()]
        try:
            for module, _ in flags:
                module.training = False
            yield
        finally:
            for module, training in flags:
                module.training = training


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without holding the model: other threads may run it, and may ask for this mode too.

    The flags are restored when the last of all such blocks ends.
    """
    modules = list(model.modules())
    with alone(model):
        for module in modules:
            part = _part(module)
            if not part.users:
                part.training, module.training = module.training, False
            part.users += 1
    try:
        yield
    finally:
        with alone(model):
            for module in modules:
                part = _part(module)
                part.users -= 1
                if not part.users:
                    module.training = part.training


def run_with(model: nn.Module, tensors: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Run ``model`` with some parameters and buffers replaced, under any of their names, wherever the model uses them.

    ``torch.func.functional_call`` swaps tensors in and out name by name, so a module registered under two names would
    keep the new tensors. Here every place that holds a tensor is written exactly once.
    """
    own = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    new = {id(tensor): tensors[name] for name, tensor in own if name in tensors}
    places: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if id(tensor) in new:
                places[f"{prefix}.{name}" if prefix else name] = new[id(tensor)]
    with alone(model):
        return functional_call(model, places, args, kwargs, tie_weights=False)


def copied(model: M, replaced: Mapping[int, Tensor] | None = None) -> M:
    """Deep copy of a model, taken while no other thread watches it: a run's hooks and flags would be copied too.

    ``replaced`` maps the ``id`` of a parameter or buffer to what takes its place, so that it is not copied; not for
    TorchScript, which copies its tensors itself.
    """
    with alone(model):
        return copy.deepcopy(model, {**unattached(model), **(replaced or {})})


def unmasked(network: N) -> N:
    """The network with its pruned weights for its own, where ``torch.nn.utils.prune`` left the masks attached."""
    made: Any = network
    if isinstance(network, Mapping):
        pruned = [n[:-5] for n in network if n.endswith("_mask") and f"{n[:-5]}_orig" in network]
        parts = {f"{name}{end}" for name in pruned for end in ("_mask", "_orig")}
        if pruned:
            made = {name: network[name] for name in network if name not in parts}
            made |= {name: network[f"{name}_orig"] * network[f"{name}_mask"] for name in pruned}
    elif isinstance(network, nn.Module) and prune.is_pruned(network):
        made = copied(network)
        for module in made.modules():
            for hook in [*module._forward_pre_hooks.values()]:
                if isinstance(hook, prune.BasePruningMethod):
                    prune.remove(module, hook._tensor_name)
    return cast(N, made)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the model's attributes after the block: counters and lists as they were, no new caches.

    A model is left as it is if it overwrites parameters or buffers in the block, since its attributes may record that,
    or if its first run makes its weights.
    """
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        yield
        return
    with alone(model):  # hooks of another thread's run are not to be kept
        kept = Kept(model)
    try:
        yield
    finally:
        with alone(model):
            if not kept.overwritten():
                kept.restore()


def _part(module: nn.Module) -> _Part:
    key = id(module)
    found = _parts.get(key)
    if found is None:
        made = _Part(weakref.ref(module, lambda _: _parts.pop(key, None)))
        found = _parts.setdefault(key, made)  # the first of two threads that come at once wins
    return found


class Switch:
    """A process-wide switch that is off as long as at least one thread needs it off."""

    def __init__(self, read: Callable[[], bool], write: Callable[[bool], None]) -> None:
        self._read, self._write = read, write
        self._lock, self._users, self._before = Lock(), 0, True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Keep the switch off in the block; it is restored when the last such block ends."""
        with self._lock:
            if not self._users:
                self._before = self._read()
                self._write(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._write(self._before)


FASTPATH = Switch(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)
"""Fused kernels of transformers, which hide what a layer does and drop padded positions from everything inside."""
