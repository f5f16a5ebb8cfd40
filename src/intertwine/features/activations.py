"""Watching a run: modules, nonlinearities (modules and functions alike), and sums that skip them.

Hooks exist only while a run lasts. ``F.relu(x)`` is named after its caller.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from .._evaluation import FASTPATH, OperationMode, evaluating, unchanged
from .batches import call, device_of, head

__all__ = [
    "ACTIVATIONS", "CLAMPS", "additions", "function_names", "is_activation", "is_one_function",
    "nonlinearity", "unwrap", "watching", "watching_functions",
]  # fmt: skip

_NOT_ACTIVATIONS = (nn.MultiheadAttention, nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin)
_CALLERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # those of torch's own modules that call functions
_TITLES = {"_prelu_kernel": "prelu", "log_sigmoid_forward": "logsigmoid"}
ACTIVATIONS = {
    *("relu", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "hardswish", "hardtanh", "tanh"),
    *("sigmoid", "hardsigmoid", "rrelu", "rrelu_with_noise", "threshold", "glu", "softshrink", "hardshrink"),
    *_TITLES,
}
"""Nonlinearities that torch runs as one operation, by its name."""
CLAMPS = {"aten::clamp", "aten::clamp_min"}
"""A ReLU if they clamp only from below, at 0."""

Names = Callable[[str, str], str | None]


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself, even if ``torch.compile`` wrapped it: compiled code does not call new hooks."""
    return getattr(model, "_orig_mod", model)


@contextmanager
def watching(watched: Mapping[str, nn.Module], see: Callable[[str, int, nn.Module, Any, Any], None]) -> Iterator[None]:
    """Call ``see(name, k, module, inputs, output)`` at every watched module's ``k``-th call, while the block runs."""
    calls: Counter[str] = Counter()

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            k = calls[name]
            calls[name] += 1
            with torch._C.DisableTorchFunction():  # a model's overrides of operations are not for the watcher
                see(name, k, module, inputs, output)

        return hook

    with ExitStack() as attached, FASTPATH.off():
        for name, module in watched.items():
            attached.callback(module.register_forward_hook(hook_for(name)).remove)
        yield


def is_activation(module: nn.Module) -> bool:
    """Whether a module applies a nonlinearity: torch's own, and classes named ``...Activation`` that hold no others."""
    if isinstance(module, _NOT_ACTIVATIONS):
        return False
    named = type(module).__name__.endswith("Activation") and next(module.children(), None) is None
    return type(module).__module__ == "torch.nn.modules.activation" or named


def nonlinearity(op: str, low: Any = None, high: Any = None) -> str | None:
    """Name of the nonlinearity that an operation is, including a clamp from ``low`` to ``high``; else ``None``."""
    name = op.removeprefix("aten::")
    if f"aten::{name}" in CLAMPS:
        return "relu" if isinstance(low, int | float) and low == 0 and high is None else None
    return _TITLES.get(name, name) if name in ACTIVATIONS else None


def nonlinearity_run(func: Any, args: Any, kwargs: Any) -> str | None:
    """Name of the nonlinearity that a dispatched operation is; ``None`` for any other operation."""
    given = dict(zip(("min", "max"), args[1:])) | (kwargs or {})
    return nonlinearity(func.overloadpacket.__name__.rstrip("_"), given.get("min"), given.get("max"))


def function_names(modules: Mapping[str, nn.Module]) -> Names:
    """Rule that names what a module calls, such as ``layer1.0.relu``; ``None`` if the module is that function."""

    def names(caller: str, function: str) -> str | None:
        module = modules[caller]
        of_torch = type(module).__module__.startswith("torch.nn.") and not isinstance(module, _CALLERS)
        if of_torch or (caller and is_one_function(module)):
            return None
        start = f"{caller}." if caller else ""
        plain = f"{start}{function}"
        return f"{start}F.{function}" if plain in modules else plain

    return names


def is_one_function(module: nn.Module) -> bool:
    """Whether a user's module holds neither parameters nor modules, such as an activation written by hand."""
    return next(module.children(), None) is None and next(module.parameters(), None) is None


@contextmanager
def watching_functions(modules: Mapping[str, nn.Module], see: Callable[[str, str, Tensor], None]) -> Iterator[None]:
    """Call ``see(caller, function, output)`` for every nonlinearity that runs, while the block runs."""
    running = [""]
    enter = lambda name: lambda module, args: running.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    def operation(func: Any, args: Any, kwargs: Any, output: Any) -> None:
        if found := nonlinearity_run(func, args, kwargs):
            see(running[-1], found, output)

    with ExitStack() as attached:
        for name, module in modules.items():
            if name and not isinstance(module, torch.jit.ScriptModule):  # these take no hooks
                attached.callback(module.register_forward_pre_hook(enter(name)).remove)
                attached.callback(module.register_forward_hook(leave).remove)
        attached.enter_context(_Operations(operation))
        yield


class _Operations(OperationMode):
    """Shows the arguments and the result of every operation."""

    def __init__(self, see: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()
        self._see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        output = func(*args, **(kwargs or {}))
        self._see(func, args, kwargs, output[0] if isinstance(output, tuple) else output)
        return output


def additions(model: nn.Module, example: Any) -> int:
    """Number of sums in a run on two examples that skip a nonlinearity and do not enter one: ends of blocks."""
    made = WeakTensorKeyDictionary()  # step at which a tensor was made; activations are not kept for it
    ends: set[int] = set()  # steps at which the sums were made
    step = latest = 0  # steps so far, and that of the latest nonlinearity

    def note(func: Any, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal step, latest
        if not isinstance(output, Tensor):
            return
        step += 1
        given = [x for x in args[:2] if isinstance(x, Tensor)]
        sums = func.overloadpacket.__name__ in ("add", "add_") and len(given) == 2 and given[0].shape == given[1].shape
        if nonlinearity_run(func, args, kwargs):
            ends.difference_update(made.get(x) for x in given)
            latest = step
        elif sums and min(made.get(x, step) for x in given) < latest:  # a tensor that no step made is a weight
            ends.add(step)
        made[output] = step

    model = unwrap(model)
    with evaluating(model), unchanged(model), torch.no_grad(), _Operations(note):
        call(model, head(example, 2), device_of(model))
    return len(ends)
