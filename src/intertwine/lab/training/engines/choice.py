"""The engine that trains k networks: by the kind of network, the same on every machine."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...._evaluation import copied
from ..recipe import Recipe
from .engine import ENGINES, Engine, Grouped, GroupedByTwo, InTurn, Stacked

_TOLERANCE = 1e-8  # of logits in float64
_SMALL_INPUT = 256  # numbers of an example: digits have 64
_SMALL_NETWORK = 1_000_000  # weights


def engine_for(networks: Sequence[nn.Module], inputs: Tensor) -> str:
    """Name of the engine that suits a kind of network: a rule, so that the same networks get the same bits everywhere.

    It is one that computes what the networks compute one by one. Small layers waste a machine one network at a time,
    wide ones do not; the maps of more than two networks may leave a processor's cache.
    """
    if sum(p.numel() for p in networks[0].parameters()) > _SMALL_NETWORK:
        return InTurn.name
    if not any(isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for m in networks[0].modules()):
        wanted: list[type[Engine]] = [Grouped, Stacked]
    elif inputs.device.type != "cpu":
        wanted = [Grouped, Stacked] if inputs[0].numel() <= _SMALL_INPUT else []
    else:
        wanted = [Grouped] if len(networks) == GroupedByTwo.most else [GroupedByTwo]
    able = candidates(networks, inputs)
    return next((engine.name for engine in wanted if engine.name in able), InTurn.name)


def candidates(networks: Sequence[nn.Module], inputs: Tensor) -> list[str]:
    """Engines that compute what the networks compute one by one, checked in float64 on a few ``inputs (B, C, *S)``."""
    joint = [name for name in ENGINES if name != InTurn.name]
    joint = [name for name in joint if (getattr(ENGINES[name], "most", None) or 0) < len(networks)]  # no parts of one
    return [InTurn.name, *(name for name in joint if agrees(ENGINES[name], networks, inputs))]


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


def draws_random_numbers(network: nn.Module, inputs: Tensor) -> bool:
    """Whether a network on the CPU draws random numbers in training mode, as dropout does: torch's generator moves."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copied(network).train()(inputs)
        return not torch.equal(before, torch.get_rng_state())
