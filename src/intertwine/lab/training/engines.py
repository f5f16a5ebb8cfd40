"""Training steps of k networks of one architecture, one by one or side by side, and the choice between the two.

Side by side, they form one network with concatenated channels, ``(N, k C, H, W)``. A convolution with k times as many
groups keeps them apart, and so does everything that acts per channel: batch norm, activations, pooling.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._evaluation import copied
from ...programs import Replayed
from .recipe import Recipe

IN_TURN, GROUPED, BY_TWO = "in turn", "grouped", "grouped by 2"
ENGINES: dict[str, int | None] = {IN_TURN: 1, GROUPED: None, BY_TWO: 2}  # networks side by side; ``None`` for all
_TOLERANCE = 1e-8  # tolerance of logits in float64
_SMALL_INPUT = 256  # numbers of an example: digits have 64
_SMALL_NETWORK = 1_000_000  # weights
# Modules that act per channel, or keep the order of the channels.
_CHANNELWISE = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Identity,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten,
)  # fmt: skip


class Engine:
    """k networks of one architecture in parts, each with its optimizer; a part is one network or several side by side.

    All engines compute the same: each network's own loss and update, as if it were alone, up to rounding. The channels
    of a part's networks are kept apart by grouped convolutions (``group_networks``). A loss depends only on its own
    network, so the gradient of the summed losses contains each network's own gradient. Optimizers work elementwise, so
    that one optimizer per part acts as one per network. Two at a time keep activations in a processor's cache.

    The given networks, in training mode, are not changed. ``workers`` parts are computed at a time, each on
    ``recipe.threads`` threads, which changes no bit.
    """

    def __init__(self, networks: Sequence[nn.Module], recipe: Recipe, name: str = IN_TURN, workers: int = 1) -> None:
        self.k, self.recipe, self.workers, self._alone = len(networks), recipe, workers, name == IN_TURN
        size = ENGINES[name] or self.k
        groups = [networks[i : i + size] for i in range(0, self.k, size)]
        self._sizes = [len(group) for group in groups]
        self._parts = [copied(group[0]) if self._alone else group_networks(group) for group in groups]
        self._half = recipe.precision == "bfloat16"
        # The layout in which bfloat16 convolutions are fast, and batch norms and poolings of many channels on a CPU.
        on_cpu = all(t.device.type == "cpu" for t in networks[0].parameters())
        last = self._half if self._alone else on_cpu
        self._channels_last = [last and not any(map(_overruns, part.modules())) for part in self._parts]
        for part in compress(self._parts, self._channels_last):
            cast(Any, part).to(memory_format=torch.channels_last)  # not typed in all releases
        self._optimizers = [recipe.make_optimizer(part) for part in self._parts]
        self._graphs = [Replayed(partial(self._gradients, i)) for i in range(len(self._parts))]
        self._pool: ThreadPoolExecutor | None = None

    def step(self, inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        """Take one step of each network; returns the ``(k,)`` losses before it.

        ``inputs`` is ``(k, B, C, *S)``, ``targets`` ``(k, B)``, or ``(k, B, classes)`` one network at a time.
        """
        of_parts = list(zip(inputs.split(self._sizes), targets.split(self._sizes)))

        def losses(i: int) -> Tensor:
            found, *gradients = self._graphs[i](*of_parts[i])
            self._graphs[i].join()
            optimizer = self._optimizers[i]
            for group in optimizer.param_groups:
                group["lr"] = rate
            for parameter, gradient in zip(self._parts[i].parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            assert found is not None
            return found

        for part in self._parts:
            part.train()
        return torch.cat(self._each(losses))

    def _gradients(self, i: int, inputs: Tensor, wanted: Tensor) -> tuple[Tensor | None, ...]:
        """Losses ``(k',)`` of the networks of part ``i``, and the gradient of each parameter that has one."""
        part = self._parts[i]
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self._half):
            out = part(self._laid_out(inputs[0] if self._alone else inputs.transpose(0, 1).flatten(1, 2), i))
        logits, smoothing = self._apart(out.float() if self._half else out, i), self.recipe.label_smoothing
        if self._alone:
            if wanted.ndim > 2:  # mixed targets over the existing classes; a network may have more outputs
                wanted = F.pad(wanted, (0, logits.shape[-1] - wanted.shape[-1]))
            found = F.cross_entropy(logits[0], wanted[0], label_smoothing=smoothing)[None]
        else:
            flat = logits.flatten(0, 1), wanted.flatten()
            each = F.cross_entropy(*flat, label_smoothing=smoothing, reduction="none")
            found = each.view(wanted.shape).mean(1)
        self._optimizers[i].zero_grad()
        found.sum().backward()
        return found.detach(), *(p.grad for p in part.parameters())

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits ``(k, B, classes)`` for shared inputs ``(B, C, *S)``, in evaluation mode."""

        def logits(i: int) -> Tensor:
            with torch.no_grad():
                part, side_by_side = self._parts[i].eval(), (1, self._sizes[i], *[1] * (inputs.ndim - 2))
                x = inputs if self._alone else self._laid_out(inputs.repeat(side_by_side), i)
                return self._apart(part(x), i)

        return torch.cat(self._each(logits))

    def member(self, i: int) -> dict[str, Tensor]:
        """A copy of the state dict of network ``i``."""
        part, place = divmod(i, self._sizes[0])
        return ungrouped(self._parts[part].state_dict(), self._sizes[part], place)

    def snapshot(self) -> dict[str, Any]:
        """Weights, buffers and optimizer states, as tensors and plain data."""
        return {
            "networks": [part.state_dict() for part in self._parts],
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        for part, saved in zip(self._parts, state["networks"], strict=True):
            part.load_state_dict(saved)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def close(self) -> None:
        """Release resources other than memory."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _laid_out(self, x: Tensor, i: int) -> Tensor:
        last = self._channels_last[i] and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if last else x

    def _apart(self, out: Tensor, i: int) -> Tensor:
        """Outputs ``(k', B, classes)`` of the networks of part ``i``."""
        return out[None] if self._alone else out.view(len(out), self._sizes[i], -1).transpose(0, 1)

    def _each(self, work: Callable[[int], Tensor]) -> list[Tensor]:
        """The results of ``work`` on each part, computed with as many at a time as there are workers."""
        count = len(self._parts)
        if min(count, self.workers) < 2:
            return [work(i) for i in range(count)]
        if self._pool is None:  # the number of threads is set per calling thread
            threads = (self.recipe.threads,)
            self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=threads)
        return list(self._pool.map(work, range(count)))


def _overruns(layer: nn.Module) -> bool:
    """Whether its channels-last weight gradient may overrun memory: oneDNN issue 6035 (torch 2.13)."""
    if not isinstance(layer, nn.Conv2d) or layer.groups > 1 or layer.in_channels >= 16:  # numbers per register
        return False
    return set(layer.kernel_size) == {1} and max(layer.stride) > 1


def engine_for(networks: Sequence[nn.Module], inputs: Tensor) -> str:
    """Name of the engine for a kind of network, by a fixed rule, so that networks get the same bits everywhere.

    The engine must compute what the networks compute one by one, which is checked on a few ``inputs (B, C, *S)``. Small
    layers waste a machine one network at a time, wide ones do not; the feature maps of more than two networks may not
    fit in a processor's cache.
    """
    if sum(p.numel() for p in networks[0].parameters()) > _SMALL_NETWORK:
        return IN_TURN
    wanted = GROUPED
    if any(isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for m in networks[0].modules()):
        if inputs.device.type == "cpu":
            wanted = BY_TWO if len(networks) > 2 else GROUPED if len(networks) == 2 else IN_TURN
        elif inputs[0].numel() > _SMALL_INPUT:
            return IN_TURN
    return wanted if wanted == IN_TURN or agrees(wanted, networks, inputs) else IN_TURN


def agrees(name: str, networks: Sequence[nn.Module], inputs: Tensor) -> bool:
    """Whether an engine accepts the networks and gives the same logits as each alone, in float64."""
    few = inputs[:4].double()
    alone = [copy.deepcopy(n).double().eval() for n in networks[:2]]
    try:
        joint = Engine(alone, Recipe(optimizer="sgd"), name)
        found = joint.logits(few)
        labels = torch.zeros(len(alone), len(few), dtype=torch.int64, device=few.device)
        joint.step(few.expand(len(alone), *few.shape), labels, 1e-3)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False
    with torch.no_grad():
        wanted = torch.stack([n(few) for n in alone])
    return found.shape == wanted.shape and bool(torch.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE))


def draws_random_numbers(network: nn.Module, inputs: Tensor) -> bool:
    """Whether a network on the CPU draws random numbers in training mode, as dropout does."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copied(network).train()(inputs)
        return not torch.equal(before, torch.get_rng_state())


class Ungroupable(ValueError):
    """An architecture whose networks cannot be laid side by side."""


class GroupedLinear(nn.Module):
    """k linear layers side by side, ``(N, k F) -> (N, k G)``."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.networks = len(layers)
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        biased = layers[0].bias is not None
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers])) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        """Map each network's features through its own layer."""
        k, n = self.networks, len(x)
        weight = self.weight.view(k, -1, self.weight.shape[1])
        features = x.reshape(n, k, -1).transpose(0, 1)
        if self.bias is None:
            out = torch.bmm(features, weight.transpose(1, 2))
        else:
            out = torch.baddbmm(self.bias.view(k, 1, -1), features, weight.transpose(1, 2))
        return out.transpose(0, 1).reshape(n, -1)


class PerNetwork(nn.Module):
    """A layer without parameters that mixes channels; each network's channels are passed as a separate example."""

    def __init__(self, layer: nn.Module, networks: int) -> None:
        super().__init__()
        self.layer, self.networks = copy.deepcopy(layer), networks

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to ``(N k, C, *S)``."""
        return self.layer(x.unflatten(1, (self.networks, -1)).flatten(0, 1)).unflatten(0, (len(x), -1)).flatten(1, 2)


def group_networks(networks: Sequence[nn.Module]) -> nn.Module:
    """One network ``(N, k C, H, W) -> (N, k classes)`` made of k; its tensors are theirs, joined along the first axis.

    The code of a forward method between its layers is not visible here: compare the outputs before relying on them. A
    layer without a counterpart raises ``Ungroupable``.
    """
    grouped = _group(networks)
    if grouped is not None:
        return grouped
    whole = copy.deepcopy(networks[0])
    for name in [name for name, _ in whole.named_modules()]:
        if name and (found := _group([n.get_submodule(name) for n in networks])) is not None:
            whole.set_submodule(name, found)
    return whole


def ungrouped(state: dict[str, Tensor], k: int, member: int) -> dict[str, Tensor]:
    """The state dict of one network, extracted from that of ``group_networks``."""
    own = {name: t if t.ndim == 0 else t.chunk(k)[member] for name, t in state.items()}
    return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in own.items()}


def _group(layers: Sequence[nn.Module]) -> nn.Module | None:
    """The counterpart of k layers; ``None`` for containers, whose children are grouped one by one."""
    first, k = layers[0], len(layers)
    if isinstance(first, nn.Conv2d):
        if first.padding_mode != "zeros":
            raise Ungroupable(f"convolutions must be padded with zeros. Got padding_mode={first.padding_mode!r}.")
        channels, window = (k * first.in_channels, k * first.out_channels), (first.kernel_size, first.stride)
        settings: Any = (*channels, *window, first.padding, first.dilation, k * first.groups, first.bias is not None)
    elif isinstance(first, nn.BatchNorm1d | nn.BatchNorm2d):
        settings = (k * first.num_features, first.eps, first.momentum, first.affine, first.track_running_stats)
    elif isinstance(first, nn.Linear):
        return GroupedLinear(layers)  # type: ignore[arg-type]
    elif isinstance(first, _CHANNELWISE):
        return copy.deepcopy(first)
    elif [*first.parameters(recurse=False), *first.buffers(recurse=False)]:
        raise Ungroupable(f"layers must be ones that can lie side by side. Got {type(first).__name__}.")
    else:
        return None if list(first.children()) else PerNetwork(first, k)
    with torch.device("meta"):
        wide = (nn.Conv2d if isinstance(first, nn.Conv2d) else type(first))(*settings)
    states = [layer.state_dict() for layer in layers]
    joined = {
        name: t.clone() if t.ndim == 0 else torch.cat([state[name] for state in states])
        for name, t in states[0].items()
    }
    wide.load_state_dict(joined, assign=True)
    return wide
