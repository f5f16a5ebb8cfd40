"""A network that a test defines inline: its parts by name, and what is computed with them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Made(nn.Module):
    """``made(self, *inputs)`` of parts: modules, lists of them, parameters (or their shapes), buffers, other values."""

    def __init__(self, made: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.made = made
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            elif isinstance(part, tuple):
                setattr(self, name, nn.Parameter(torch.randn(part)))
            else:
                setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.made(self, *inputs, **named)


class Function(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named)
