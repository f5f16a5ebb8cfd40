"""Engines that take one optimizer step of k networks, each by itself or side by side, and which of them suits."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._evaluation import copied
from .grouped import group_networks, ungrouped
from .recipe import Recipe

_TOLERANCE = 1e-8  # of logits in float64
_SMALL_INPUT = 256  # numbers of an example: digits have 64
_SMALL_NETWORK = 1_000_000  # weights


class Engine(ABC):
    """k networks of one architecture and their optimizers.

    All engines compute the same: each network's own loss and update, as if it were alone, up to rounding.

    Args:
        networks: k networks in training mode; they are not changed.
        recipe: Settings.
        workers: Networks, or groups of them, that are computed at a time, each on ``recipe.threads`` threads. Their
            number changes no bit.
    """

    name: ClassVar[str]

    def __init__(self, networks: Sequence[nn.Module], recipe: Recipe, workers: int = 1) -> None:
        self.k, self.recipe, self.workers = len(networks), recipe, workers
        self._pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def step(self, inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        """One step of each network; gives ``(k,)`` losses before it.

        ``inputs`` is ``(k, B, C, *S)``, ``targets`` ``(k, B)``, or ``(k, B, classes)`` one network at a time.
        """

    @abstractmethod
    def logits(self, inputs: Tensor) -> Tensor:
        """``(k, B, classes)`` for shared inputs ``(B, C, *S)``, in evaluation mode."""

    @abstractmethod
    def member(self, i: int) -> dict[str, Tensor]:
        """A copy of the state dict of network ``i``."""

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Weights, buffers and optimizers, as tensors and plain data."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""

    def close(self) -> None:
        """Let go of what an engine holds besides memory."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _each(self, work: Callable[[int], Tensor], count: int) -> list[Tensor]:
        """``work`` of 0, 1, ..., as many at a time as there are workers."""
        if min(count, self.workers) < 2:
            return [work(i) for i in range(count)]
        if self._pool is None:  # the number of threads is a setting of each calling thread
            self._pool = ThreadPoolExecutor(
                self.workers, initializer=torch.set_num_threads, initargs=(self.recipe.threads,)
            )
        return list(self._pool.map(work, range(count)))


class InTurn(Engine):
    """The plain loop of each network."""

    name: ClassVar[str] = "in turn"

    def __init__(self, networks: Sequence[nn.Module], recipe: Recipe, workers: int = 1) -> None:
        super().__init__(networks, recipe, workers)
        self._networks = [copied(n) for n in networks]
        self._half = recipe.precision == "bfloat16"
        for network in self._networks if self._half else ():  # the layout in which bfloat16 convolutions are fast
            cast(Any, network).to(memory_format=torch.channels_last)  # not all releases type it
        self._optimizers = [recipe.make_optimizer(n) for n in self._networks]

    def step(self, inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        """One step of each network."""
        return torch.stack(self._each(lambda i: self._step(i, inputs[i], targets[i], rate), self.k))

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of each network."""
        return torch.stack(self._each(lambda i: self._logits(i, inputs), self.k))

    def member(self, i: int) -> dict[str, Tensor]:
        """State dict of network ``i``."""
        return {name: t.detach().clone() for name, t in self._networks[i].state_dict().items()}

    def snapshot(self) -> dict[str, Any]:
        """Weights, buffers and optimizers."""
        return {
            "networks": [n.state_dict() for n in self._networks],
            "optimizers": [o.state_dict() for o in self._optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        for network, saved in zip(self._networks, state["networks"], strict=True):
            network.load_state_dict(saved)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _step(self, i: int, inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        optimizer = self._optimizers[i]
        _set_rate(optimizer, rate)
        if self._half and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self._half):
            logits = self._networks[i].train()(inputs)
        logits = logits.float() if self._half else logits
        loss = F.cross_entropy(logits, targets, label_smoothing=self.recipe.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def _logits(self, i: int, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._networks[i].eval()(inputs)


class Grouped(Engine):
    """The networks' channels side by side, kept apart by grouped convolutions (see ``grouped.py``).

    A loss depends on its own network only, so the gradient of the sum of the losses holds each network's own gradient;
    and the optimizers work element by element, so that one optimizer of all is k optimizers.
    """

    name: ClassVar[str] = "grouped"
    most: ClassVar[int | None] = None  # networks side by side

    def __init__(self, networks: Sequence[nn.Module], recipe: Recipe, workers: int = 1) -> None:
        super().__init__(networks, recipe, workers)
        size = self.most or self.k
        parts = [networks[i : i + size] for i in range(0, self.k, size)]
        self._sizes = [len(part) for part in parts]
        self._wholes = nn.ModuleList(group_networks(part) for part in parts)
        self._on_cpu = all(t.device.type == "cpu" for t in networks[0].parameters())
        if self._on_cpu:  # whose batch norms and poolings take several channels at a time in this layout
            cast(Any, self._wholes).to(memory_format=torch.channels_last)  # not all releases type it
        self._optimizer = recipe.make_optimizer(self._wholes)

    def step(self, inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        """One step of each network."""
        _set_rate(self._optimizer, rate)
        self._optimizer.zero_grad()
        self._wholes.train()
        of_groups = list(zip(inputs.split(self._sizes), targets.split(self._sizes)))

        def losses(i: int) -> Tensor:
            x, wanted = of_groups[i]
            logits = self._run(i, x.transpose(0, 1).flatten(1, 2))
            smoothing = self.recipe.label_smoothing
            each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=smoothing, reduction="none")
            found = each.view(wanted.shape).mean(1)
            found.sum().backward()
            return found.detach()

        found = torch.cat(self._each(losses, len(self._sizes)))
        self._optimizer.step()
        return found

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of each network."""
        self._wholes.eval()

        def logits(i: int) -> Tensor:
            with torch.no_grad():
                return self._run(i, inputs.repeat(1, self._sizes[i], *[1] * (inputs.ndim - 2)))

        return torch.cat(self._each(logits, len(self._sizes)))

    def member(self, i: int) -> dict[str, Tensor]:
        """State dict of network ``i``."""
        part, place = divmod(i, self._sizes[0])
        return ungrouped(self._wholes[part].state_dict(), self._sizes[part], place)

    def snapshot(self) -> dict[str, Any]:
        """Weights, buffers and optimizer."""
        return {"wholes": self._wholes.state_dict(), "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        self._wholes.load_state_dict(state["wholes"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _run(self, i: int, inputs: Tensor) -> Tensor:
        """Logits ``(k', B, classes)`` of group ``i`` for ``(B, k' C, *S)``."""
        if self._on_cpu and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits = self._wholes[i](inputs)
        return logits.view(len(logits), self._sizes[i], -1).transpose(0, 1)


class GroupedByTwo(Grouped):
    """Two networks side by side at a time: their activations stay in a processor's cache."""

    name: ClassVar[str] = "grouped by 2"
    most: ClassVar[int | None] = 2


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


ENGINES: dict[str, type[Engine]] = {e.name: e for e in (InTurn, Grouped, GroupedByTwo)}


def engine_for(networks: Sequence[nn.Module], inputs: Tensor) -> str:
    """Name of the engine that suits a kind of network: a rule, so that the same networks get the same bits everywhere.

    It is one that computes what the networks compute one by one. Small layers waste a machine one network at a time,
    wide ones do not; the maps of more than two networks may leave a processor's cache.
    """
    if sum(p.numel() for p in networks[0].parameters()) > _SMALL_NETWORK:
        return InTurn.name
    if not any(isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for m in networks[0].modules()):
        wanted: list[type[Engine]] = [Grouped]
    elif inputs.device.type != "cpu":
        wanted = [Grouped] if inputs[0].numel() <= _SMALL_INPUT else []
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
