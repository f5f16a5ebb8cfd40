"""Affinity of functions, checked on samples: of linear gating networks, and of value networks with fixed gates."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .._evaluation import evaluating


def departures(f: Callable[[Tensor], list[Tensor]], x: Tensor) -> list[float]:
    """How far ``f`` is from affine between 0, ``x`` and random points: ``f(x + z) - f(x) - f(z) + f(0)``.

    For each tensor that ``f`` gives, the largest departure as a share of the largest value of its example. Each input
    of ``x`` is tried with a larger ``z`` than the one before, since a kink shows far from 0 and a wave near it.
    """
    scale = float(x.square().mean().sqrt()) or 1.0
    scales = torch.tensor([scale * 10.0**k for k in range(len(x))]).to(x).view(-1, *[1] * (x.dim() - 1))
    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x) * scales
    found = []
    for four in zip(f(x + z), f(x), f(z), f(torch.zeros_like(x))):
        both, one, other, none = (t.reshape(len(t), -1) for t in four)
        size = torch.stack([t.abs().amax(1) for t in (both, one, other, none)]).amax(0)
        off = (both - one - other + none).abs().amax(1) / size.clamp(min=torch.finfo(size.dtype).tiny)
        found.append(float(off.nan_to_num(0.0).max()))
    return found


def tolerance(x: Tensor) -> float:
    """What rounding may add up to: accelerators round products to ten or eight bits."""
    exact = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return 1e-3 if exact else 5e-2


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients or forward hooks; buffers and random numbers are as they were afterwards.

    Hooks before a forward pass do run: some compute weights.
    """
    here = next((b.device for b in [*model.parameters(), *model.buffers()]), torch.device("cpu"))
    devices = [here] if here.type == "cuda" else []
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=devices):
        hooks = [(module, module._forward_hooks) for module in model.modules()]
        buffers = [(b, b.clone()) for b in model.buffers()]
        try:
            for module, _ in hooks:
                module._forward_hooks = OrderedDict()
            yield
        finally:
            for module, own in hooks:
                module._forward_hooks = own
            for buffer, before in buffers:
                buffer.copy_(before)


def is_plain(x: Tensor) -> bool:
    """Whether numbers can be looked at: nothing is compiled, transformed, captured or without content."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and not x.is_meta
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and _get_current_dispatch_mode() is None
    )
