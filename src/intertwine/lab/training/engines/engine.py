"""Engines that take one optimizer step of k networks: each by itself, stacked through torch.func, or side by side."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ...._evaluation import copied
from ..recipe import Recipe
from .grouped import group_networks, ungrouped


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

    def _losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), label_smoothing=self.recipe.label_smoothing, reduction="none"
        )
        return each.view(targets.shape).mean(1)


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


class _Joint(Engine):
    """All networks in one program: forward, and an ordinary backward of the sum of the losses.

    A loss depends on its own network only, so the gradient of the sum holds each network's own gradient; and the
    optimizers work element by element, so that one optimizer of all is k optimizers.
    """

    _optimizer: torch.optim.Optimizer
    _sizes: list[int]
    """Networks of each group."""

    @abstractmethod
    def _train(self) -> None:
        """Go to training mode."""

    @abstractmethod
    def _forward(self, i: int, inputs: Tensor) -> Tensor:
        """Logits ``(k', B, classes)`` of group ``i`` for its inputs ``(k', B, C, *S)``."""

    def step(self, inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        """One step of each network."""
        _set_rate(self._optimizer, rate)
        self._optimizer.zero_grad()
        self._train()
        of_groups = list(zip(inputs.split(self._sizes), targets.split(self._sizes)))

        def losses(i: int) -> Tensor:
            found = self._losses(self._forward(i, of_groups[i][0]), of_groups[i][1])
            found.sum().backward()
            return found.detach()

        found = torch.cat(self._each(losses, len(self._sizes)))
        self._optimizer.step()
        return found


class Stacked(_Joint):
    """Parameters stacked along a new axis, the forward pass mapped over it by ``torch.func.vmap``."""

    name: ClassVar[str] = "stacked"

    def __init__(self, networks: Sequence[nn.Module], recipe: Recipe, workers: int = 1) -> None:
        super().__init__(networks, recipe, workers)
        self._sizes = [self.k]
        self._base = copy.deepcopy(networks[0]).to("meta")
        parameters, self._buffers = stack_module_state(list(networks))
        self._parameters: dict[str, Tensor] = {name: nn.Parameter(t.detach()) for name, t in parameters.items()}
        self._buffers = {name: t.detach().clone() for name, t in self._buffers.items()}
        self._optimizer = recipe.make_optimizer(nn.ParameterList(self._parameters.values()))

    def _call(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self._base, (parameters, buffers), (x,))

    def _train(self) -> None:
        self._base.train()

    def _forward(self, i: int, inputs: Tensor) -> Tensor:
        return vmap(self._call)(self._parameters, self._buffers, inputs)

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of each network."""
        self._base.eval()
        with torch.no_grad():
            return vmap(self._call, in_dims=(0, 0, None))(self._parameters, self._buffers, inputs)

    def member(self, i: int) -> dict[str, Tensor]:
        """State dict of network ``i``."""
        stacked = {**self._parameters, **self._buffers}
        return {name: stacked[name][i].detach().clone() for name in self._base.state_dict()}

    def snapshot(self) -> dict[str, Any]:
        """Weights, buffers and optimizer."""
        plain = {name: t.detach() for name, t in self._parameters.items()}
        return {"parameters": plain, "buffers": self._buffers, "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        with torch.no_grad():
            for mine, saved in ((self._parameters, state["parameters"]), (self._buffers, state["buffers"])):
                for name, tensor in mine.items():
                    tensor.copy_(saved[name])
        self._optimizer.load_state_dict(state["optimizer"])


class Grouped(_Joint):
    """The networks' channels side by side, kept apart by grouped convolutions (see ``grouped.py``)."""

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

    def _train(self) -> None:
        self._wholes.train()

    def _forward(self, i: int, inputs: Tensor) -> Tensor:
        return self._run(self._wholes[i], inputs.transpose(0, 1).flatten(1, 2), len(inputs))

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits of each network."""
        self._wholes.eval()
        return torch.cat(self._each(lambda i: self._logits(i, inputs), len(self._sizes)))

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

    def _logits(self, i: int, inputs: Tensor) -> Tensor:
        n = self._sizes[i]
        with torch.no_grad():
            return self._run(self._wholes[i], inputs.repeat(1, n, *[1] * (inputs.ndim - 2)), n)

    def _run(self, whole: nn.Module, inputs: Tensor, networks: int) -> Tensor:
        if self._on_cpu and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits = whole(inputs)
        return logits.view(len(logits), networks, -1).transpose(0, 1)


class GroupedByTwo(Grouped):
    """Two networks side by side at a time: their activations stay in a processor's cache."""

    name: ClassVar[str] = "grouped by 2"
    most: ClassVar[int | None] = 2


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


ENGINES: dict[str, type[Engine]] = {e.name: e for e in (InTurn, Stacked, Grouped, GroupedByTwo)}
