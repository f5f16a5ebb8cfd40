"""Watching a run: hooks that exist only while it lasts."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself, where ``torch.compile`` wrapped it: compiled code does not call new hooks."""
    return getattr(model, "_orig_mod", model)


def modules(model: nn.Module) -> dict[str, nn.Module]:
    """Names to modules; a module registered under several names appears under the first."""
    return dict(model.named_modules())


@contextmanager
def watching(watched: Mapping[str, nn.Module], see: Callable[[str, int, nn.Module, Any, Any], None]) -> Iterator[None]:
    """Call ``see(name, k, module, inputs, output)`` at every watched module's ``k``-th call, while the block runs."""
    calls: Counter[str] = Counter()

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            k = calls[name]
            calls[name] += 1
            with torch._C.DisableTorchFunction():  # what a model does to its own operations is not for who watches
                see(name, k, module, inputs, output)

        return hook

    with ExitStack() as attached:
        for name, module in watched.items():
            attached.callback(module.register_forward_hook(hook_for(name)).remove)
        yield
