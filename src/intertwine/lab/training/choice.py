"""Which engine trains k networks fastest on this machine: measured, not guessed."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .engines import ENGINES, Engine, InTurn, Threads
from .recipe import Recipe

__all__ = ["agrees", "candidates", "choose_engine", "draws_random_numbers", "step_seconds"]

_GAIN = 1.05  # an engine replaces the plain loop only if it is clearly faster
_TIMED = 3  # steps at least, after one to warm up
_MOST = 20  # steps, where they are short
_LONG = 0.5  # seconds after which no more are taken
_TOLERANCE = 1e-8  # of logits in float64


def choose_engine(
    networks: Sequence[nn.Module], recipe: Recipe, inputs: Tensor, targets: Tensor
) -> tuple[str, dict[str, float]]:
    """Time a few real steps of every engine that can train these networks, on copies.

    Args:
        networks: k networks, in place on their device.
        recipe: Settings.
        inputs: ``(k, B, C, *S)``, a batch for each.
        targets: ``(k, B)``.

    Returns:
        The name of the fastest engine, and seconds of a step of all networks by engine. The plain loop stays unless
        another is at least 5 % faster.
    """
    seconds = {
        name: step_seconds(ENGINES[name](networks, recipe), inputs, targets) for name in candidates(networks, inputs[0])
    }
    best = min(seconds, key=lambda name: seconds[name])
    return (best if seconds[best] * _GAIN <= seconds[InTurn.name] else InTurn.name), seconds


def candidates(networks: Sequence[nn.Module], inputs: Tensor) -> list[str]:
    """Engines that compute what the networks compute one by one, checked in float64 on a few examples.

    Args:
        networks: k networks.
        inputs: ``(B, C, *S)``.

    Returns:
        Names, the plain loop first.
    """
    names = [InTurn.name]
    if inputs.device.type == "cpu" and torch.get_num_threads() > 1:
        names.append(Threads.name)
    joint = [name for name in ENGINES if name not in (InTurn.name, Threads.name)]
    joint = [name for name in joint if (getattr(ENGINES[name], "most", None) or 0) < len(networks)]  # no parts of one
    return names + [name for name in joint if agrees(ENGINES[name], networks, inputs)]


def agrees(engine: type[Engine], networks: Sequence[nn.Module], inputs: Tensor) -> bool:
    """Whether an engine accepts the networks and gives the logits that each gives alone."""
    few = inputs[:4].double()
    alone = [copy.deepcopy(n).double().eval() for n in networks[:2]]
    try:
        joint = engine(alone, Recipe(optimizer="sgd"))
        found = joint.logits(few)
        labels = torch.zeros(len(alone), len(few), dtype=torch.int64, device=few.device)
        joint.step(few.expand(len(alone), *few.shape), labels, 1e-3)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False
    with torch.no_grad():
        wanted = torch.stack([n(few) for n in alone])
    return found.shape == wanted.shape and bool(torch.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE))


def step_seconds(engine: Engine, inputs: Tensor, targets: Tensor) -> float:
    """Shortest of a few steps, of more where they are short, after one to warm up; the engine is closed then."""
    times: list[float] = []
    while len(times) <= _TIMED or (len(times) <= _MOST and sum(times) < _LONG):
        start = time.perf_counter()
        engine.step(inputs, targets, 1e-6)
        if inputs.device.type == "cuda":
            torch.cuda.synchronize(inputs.device)
        times.append(time.perf_counter() - start)
    engine.close()
    return min(times[1:])


def draws_random_numbers(network: nn.Module) -> bool:
    """Whether a network draws random numbers in training mode, as dropout does."""
    return any("Drop" in type(m).__name__ and getattr(m, "p", 1.0) for m in network.modules())
