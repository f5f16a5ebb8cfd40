"""Statistics of networks whose weights were never trained: batch norms measured anew, and REPAIR for those without.

Stitched networks are programs, whose batch norms are calls (``programs.Part.measuring_norms``). Here batch norms are
modules of a model that need not run as a program, so hooks watch them; moments and batches are those of stitching.
REPAIR gives the channels of an interpolated network the means and spreads that its parents agree on.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._evaluation import evaluating, in_usual_mode
from .._nested import tensors_in
from ..features.activations import watching
from ..features.batches import call, check_repeatable, device_of, head, peek, repeatable, size
from ..features.moments import ChannelMoments, NormStatistics, fewest, normalisable

_BatchNorm = nn.modules.batchnorm._BatchNorm
_DEAD = 1e-12  # share of the parents' spread below which a channel of the merged network cannot be rescaled
_PRODUCTS = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norms with running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


@in_usual_mode
def recalibrate_(model: nn.Module, loader: Iterable[Any]) -> nn.Module:
    """Replace the running statistics of all batch norms by the moments of their inputs over a loader.

    While the loader is read, batch norms normalise by their batch and everything else is in evaluation mode. Unlike an
    average of running statistics, the moments are those of all examples together, with the variance unbiased as torch
    keeps it.

    Args:
        model: A model with batch norms, changed in place; one without is left as it is.
        loader: Batches; labels are not used. Shuffled batches of a few hundred examples are best; a batch of one value
            per channel joins its neighbour. A loader that shuffles by torch's global random numbers is read in the same
            order every time.

    Raises:
        ValueError: If the loader holds one value per channel, or none.

    Examples:
        >>> model = nn.BatchNorm1d(2)
        >>> x = torch.randn(64, 2) * 3 + 1
        >>> _ = recalibrate_(model, x.split(16))
        >>> torch.allclose(model.running_mean, x.mean(0)), torch.allclose(model.running_var, x.var(0))
        (True, True)
    """  # noqa: DOC502 - raised by what it calls
    norms = batch_norms(model)
    if not norms:
        return model
    first, batches = peek(loader)
    least = fewest(model, dict.fromkeys(norms, 1), first)
    device = device_of(model)
    with evaluating(model), _measuring(norms), torch.no_grad():
        for batch in normalisable(batches, least):
            call(model, batch, device)
    return model


@contextmanager
def _measuring(norms: dict[str, _BatchNorm]) -> Iterator[None]:
    """Training mode for batch norms, which hold the moments of all their inputs afterwards."""

    def measure(name: str, k: int, norm: nn.Module, inputs: Any, output: Tensor) -> None:
        found.add(norm.running_mean, norm.running_var, output.numel() // output.shape[1])  # type: ignore[arg-type]

    found = NormStatistics((norm.running_mean, norm.running_var) for norm in norms.values())  # type: ignore[misc]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms.values()]
    try:
        for norm in norms.values():
            norm.training, norm.momentum = True, 1.0
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked = norm.num_batches_tracked.clone()  # these batches do not count
        with found, watching(norms, measure):
            yield
    finally:
        for norm, momentum, batches in kept:
            norm.momentum, norm.num_batches_tracked = momentum, batches


@in_usual_mode
def repair_(
    model: nn.Module, a: nn.Module, b: nn.Module, loader: Iterable[Any], ratio: float = 0.5, shift: bool = True
) -> nn.Module:
    """Correct the collapsed spread of an interpolated network, channel by channel (Jordan et al. 2023).

    The outputs ``y`` of every hidden linear or convolutional layer are mapped to

        y' = (y - mean_m) * sd / sd_m + mean,    mean = (1 - r) mean_a + r mean_b,    sd = (1 - r) sd_a + r sd_b

    over all examples and positions, and the map is written into weight and bias. As in the paper, layers are corrected
    together while the data runs through, each batch by its own moments, so that later layers see repaired inputs; the
    moments that are written are those of all batches together. The last layer that runs, which may be a function call,
    is left alone, and so is a layer whose tensors are shared with another module or read by code outside of it. Layers
    whose weights are computed at every run (weight norm, pruning, standardised weights) are left out, and a warning
    names them. The paper inserts batch norms; this finds the same numbers without them. For networks with batch norm
    use ``recalibrate_``.

    Args:
        model: The interpolated network, changed in place.
        a: One parent.
        b: The other parent, aligned: in the basis of ``a``.
        loader: Batches, read three times; labels are not used.
        ratio: The share of ``b`` in ``model``.
        shift: Whether to correct the means as well. ``False`` is the paper's RESCALE, ``y' = y sd / sd_m``; layers
            without a bias are only rescaled in either case.

    Raises:
        ValueError: If the loader can be read only once or holds one value per channel, or the weights of all layers
            are computed at every run.

    References:
        - Jordan, K., Sedghi, H., Saukh, O., Entezari, R. and Neyshabur, B. REPAIR: REnormalizing Permuted Activations
          for Interpolation Repair. ICLR 2023, equation 4.
    """  # noqa: DOC502 - raised by what it calls
    return repaired_(model, [a, b], {name: (1 - ratio, ratio) for name, _ in model.named_modules()}, loader, shift)


def repaired_(
    model: nn.Module,
    parents: Sequence[nn.Module],
    shares: Mapping[str, Sequence[float]],
    loader: Iterable[Any],
    shift: bool,
) -> nn.Module:
    """``repair_`` for some modules of a mean of networks in one basis, by the parents' shares in each."""
    check_repeatable(loader)
    first, _ = peek(loader)
    found, computed = repairable(model, first)
    layers = {name: axis for name, axis in found.items() if name in shares}
    computed = [name for name in computed if any(share == name or share.startswith(f"{name}.") for share in shares)]
    if computed:
        _tell(computed, bool(layers))
    least = fewest(model, layers, first)
    goals = _goals([_moments(parent, loader, layers) for parent in parents], shares)
    seen: dict[str, ChannelMoments] = {name: ChannelMoments() for name in layers}

    def corrected(name: str, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        """Correct a layer's output by the moments of its batch, and measure what it was before."""
        here = ChannelMoments()
        here.add(output, layers[name])
        seen[name].add(output, layers[name])
        factor, offset = _map(here, goals[name], shift and module.bias is not None)
        return _along(output, factor, layers[name]) * output + _along(output, offset, layers[name])

    device = device_of(model)
    with evaluating(model), _hooked(model, layers, corrected), torch.no_grad():
        for batch in normalisable(repeatable(loader), least):
            call(model, batch, device)
    for name in layers:  # the map goes into weight and bias
        layer = model.get_submodule(name)
        bias = layer.bias
        factor, offset = _map(seen[name], goals[name], shift and bias is not None)
        with torch.no_grad():
            _multiply_(layer, factor)
            if bias is not None:
                bias.copy_(factor.to(bias.device) * bias + offset.to(bias.device))  # type: ignore[operator, arg-type]
    return model


def repairable(model: nn.Module, batch: Any) -> tuple[dict[str, int], list[str]]:
    """Modules whose outputs can be corrected, in running order, with their channel axes; and other modules.

    The others would be corrected if their outputs followed their weights.
    """
    users: dict[int, int] = {}
    for module in model.modules():
        for tensor in module.parameters(recurse=False):
            users[id(tensor)] = users.get(id(tensor), 0) + 1
    axes = {name: axis for name, module in model.named_modules() if (axis := _axis(module)) is not None}
    calls: dict[str, int] = {}
    follows: dict[str, bool] = {}
    own: dict[str, dict[int, int]] = {}  # how often a layer reads each parameter
    last, reads = "", _Reads(model)

    again = False  # whether a layer runs a second time

    def doubled(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        """See whether twice the weight and bias give twice the output."""
        nonlocal again, last
        if again:
            return
        parts, before = [part for part in (layer.weight, layer.bias) if isinstance(part, Tensor)], reads.counts
        reads.counts = dict.fromkeys(before, 0)  # what is read here is not part of the run
        kept, again = [part.clone() for part in parts], True
        try:
            for part in parts:
                part.mul_(2)
            reads.counts = dict.fromkeys(before, 0)
            twice = layer(*args, **kwargs)
            own[name] = dict(reads.counts)
        finally:
            again = False
            for part, old in zip(parts, kept):
                part.copy_(old)
        calls[name], last = calls.get(name, 0) + 1, name
        follows[name] = torch.allclose(twice, 2 * output, rtol=1e-3, atol=0, equal_nan=True)
        reads.counts, reads.multiplied = before, False

    with evaluating(model), _hooked(model, axes, doubled), torch.no_grad(), reads:
        call(model, head(batch, min(size(batch), 2)), device_of(model))
    last = "" if reads.multiplied else last  # a head that is called as a function

    def alone(name: str) -> bool:
        parameters, mine = model.get_submodule(name).parameters(recurse=False), own[name]
        return all(users[id(p)] == 1 and reads.counts[k := p.data_ptr()] == mine[k] for p in parameters)

    hidden = [name for name, count in calls.items() if count == 1 and name != last and alone(name)]
    return {name: axes[name] for name in hidden if follows[name]}, [name for name in hidden if not follows[name]]


class _Reads(TorchFunctionMode):
    """Counts reads of each parameter, under any view, and whether one was multiplied by since the last reset."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.counts, self.multiplied = {p.data_ptr(): 0 for p in model.parameters()}, False
        self._matrices = {p.data_ptr() for p in model.parameters() if p.ndim > 1}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(True for _ in tensors_in(result)):  # not for a question about shape or type
            read = {x.data_ptr() for x in tensors_in((args, kwargs or {}))} & self.counts.keys()
            self.counts |= {k: self.counts[k] + 1 for k in read}
            self.multiplied |= func.__name__ in _PRODUCTS and bool(read & self._matrices)
        return result


@contextmanager
def _hooked(model: nn.Module, names: Iterable[str], hook: Callable[..., Tensor | None]) -> Iterator[None]:
    """Call ``hook(name, module, args, kwargs, output)`` whenever some module has run; its result is the output."""
    with ExitStack() as attached:
        for name in names:
            handle = model.get_submodule(name).register_forward_hook(partial(hook, name), with_kwargs=True)
            attached.callback(handle.remove)
        yield


def _tell(computed: Sequence[str], others: bool) -> None:
    """Warn about the layers that were left out; an error if there are no others."""
    said = (
        "layers must hold weights of their own to be repaired, not ones computed at every run (weight norm, spectral "
        f"norm, pruning, standardised weights). Got {', '.join(map(repr, computed))}: make them permanent with "
        "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.prune.remove"
    )
    if not others:
        raise ValueError(f"{said}, or merge with repair=False, --repair none on the command line.")
    warnings.warn(f"{said}; they stay as they were interpolated.", stacklevel=4)


def _axis(module: nn.Module) -> int | None:
    """Axis of the channels in the output of a layer that can take a factor per channel."""
    if isinstance(module, nn.Linear) or _is_transposed(module):
        return -1
    return 1 if isinstance(module, _CONVOLUTIONS) else None


def _multiply_(layer: nn.Module, factor: Tensor) -> None:
    """Multiply the weight of a layer by a factor for each of its output channels."""
    weight: Any = layer.weight
    if isinstance(layer, _TRANSPOSED):  # (inputs, outputs of a group, ...), group after group
        weight = weight.unflatten(0, (layer.groups, -1))
        factor = factor.view(layer.groups, 1, -1, *[1] * (weight.ndim - 3)).to(weight)
        weight.mul_(factor)
    else:
        weight.mul_(_along(weight, factor, 1 if _is_transposed(layer) else 0))


def _is_transposed(module: nn.Module) -> bool:
    # the linear layer of GPT-2 in transformers holds its weight as (inputs, outputs)
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _moments(model: nn.Module, loader: Iterable[Any], layers: Mapping[str, int]) -> dict[str, ChannelMoments]:
    found = {name: ChannelMoments() for name in layers}

    def see(name: str, _: int, module: nn.Module, given: Any, output: Tensor) -> None:
        found[name].add(output, layers[name])

    watched = {name: model.get_submodule(name) for name in layers}
    device = device_of(model)
    with evaluating(model), watching(watched, see), torch.no_grad():
        for batch in repeatable(loader):
            call(model, batch, device)
    return found


def _goals(
    parents: Sequence[dict[str, ChannelMoments]], shares: Mapping[str, Sequence[float]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Target mean and standard deviation of each layer's channels."""
    goals = {}
    for name, first in parents[0].items():
        device = first.mean.device
        mean = sum((w * p[name].mean.to(device) for w, p in zip(shares[name], parents)), torch.zeros((), device=device))
        deviations = (w * p[name].variance.sqrt().to(device) for w, p in zip(shares[name], parents))
        goals[name] = mean, sum(deviations, torch.zeros((), device=device))
    return goals


def _map(here: ChannelMoments, goal: tuple[Tensor, Tensor], shift: bool) -> tuple[Tensor, Tensor]:
    """Factor and offset of each channel; a channel without spread keeps its scale."""
    mean, spread = (part.to(here.mean.device) for part in goal)
    own = here.variance.sqrt()
    alive = own > _DEAD * spread.clamp_min(1e-300)
    factor = torch.where(alive, spread / own.clamp_min(1e-300), 1.0)
    return factor, mean - factor * here.mean if shift else torch.zeros_like(factor)


def _along(output: Tensor, values: Tensor, axis: int) -> Tensor:
    shape = [1] * output.ndim
    shape[axis] = -1
    return values.to(output.device, output.dtype).reshape(shape)
