"""Linear CKA of all pairs of layers from one pass over data of any size, by the minibatch estimator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._io import versions
from .._progress import track
from .._words import counted
from .._zoo_intervals import student_t
from ..features import Point, Selector, Tapped
from ..features import batches as batching
from ._features import double, working_dtype
from .comparison.result import Comparison
from .hsic import center_gram
from .kernels.linear import linear_gram
from .kernels.symmetric import add_product, mirror
from .registry import measure as find

_SMALLEST = 4  # the unbiased estimator divides by n (n - 3)
_LARGE_MEAN = 16  # mean square over variance from which features are centred first
_FEWEST_GROUPS = 5  # below this a spread over groups says nothing


def minibatch_cka(
    a: nn.Module,
    b: nn.Module,
    loader: Iterable[Any],
    layers: str | Sequence[str] | None = None,
    *,
    layers_b: str | Sequence[str] | None = None,
    group_size: int = 128,
    outputs: Selector | Mapping[str, Selector] | None = None,
    confidence: float = 0.95,
    progress: bool | None = None,
) -> Comparison:
    r"""Estimate linear CKA between all layers of two networks without keeping features.

    It differs from :func:`intertwine.compare`, which is exact: this one sees pairs of examples within a group only.
    With groups :math:`g` of :math:`n_g` examples, Gram matrices :math:`K_g, L_g` and their U-centred versions
    :math:`\tilde K_g, \tilde L_g` (zero diagonal, rows that sum to zero),

    .. math:: \text{CKA} = \frac{\sum_g \langle \tilde K_g, \tilde L_g \rangle}
              {\sqrt{\sum_g \langle \tilde K_g, \tilde K_g \rangle \sum_g \langle \tilde L_g, \tilde L_g \rangle}} .

    Since :math:`\langle \tilde K_g, \tilde L_g \rangle = n_g (n_g - 3) \, \text{HSIC}_1(K_g, L_g)`, every group's
    unbiased estimate has its right weight, and no denominator can be negative: there is no NaN at any batch size. Small
    batches are joined, and a rest that is too small joins the group before it. Memory: the Gram matrices of one group.

    Intervals are delete-one-group jackknife intervals; they assume that the loader's order is random. Networks, loader
    and layers are given as to :func:`intertwine.compare`, and a network against itself runs once. Every group has
    ``group_size`` examples or more: more of them give less noise.

    Raises:
        ValueError: If ``group_size`` is less than 4, ``confidence`` not between 0 and 1, or there are fewer than 4
            examples.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU())
        >>> x = torch.randn(90, 5, generator=torch.Generator().manual_seed(0))
        >>> result = minibatch_cka(net, net, x.split(7), group_size=20)
        >>> result.scores["linear_cka"].diagonal().tolist()
        [1.0, 1.0]

    References:
        Song et al. 2012, Feature selection via dependence maximization (HSIC_1); Nguyen, Raghu, Kornblith 2021, Do wide
        and deep networks learn the same things? (minibatches).
    """
    if group_size < _SMALLEST:
        raise ValueError(f"group_size must be at least {_SMALLEST} examples. Got {group_size}.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1. Got {confidence}.")
    first, stream = batching.peek(loader)
    products: list[tuple[Tensor, Tensor, Tensor]] = []
    examples = 0
    with (
        Tapped(a, layers, outputs=outputs, keep=_gram) as tap_a,
        Tapped(b, layers if layers_b is None else layers_b, outputs=outputs, keep=_gram) as tap_b,
    ):
        tap_a.prepare(first), tap_b.prepare(first)
        for batch in batching.regroup(track(stream, "Comparing layers", batching.length(loader), progress), group_size):
            examples += batching.size(batch)
            if batching.size(batch) < _SMALLEST:
                raise ValueError(f"loader must yield at least {_SMALLEST} examples. Got {examples}.")
            grams = tap_a(batch)
            products.append(_products(grams, grams if a is b and layers_b is None else tap_b(batch)))
    return _result(tap_a.points, tap_b.points, products, examples, confidence, group_size)


def _gram(name: str, features: Tensor) -> Tensor:
    """The U-centred Gram matrix of a group as a float64 vector; channels and space are summed over.

    Features that do not vary within the group, or by no more than their rounding, give zeros.

    Raises:
        ValueError: If the features hold NaN or infinities.
    """
    gram = double(_products_of(features))
    if not torch.isfinite(gram).all():
        raise ValueError(f"features of layer {name!r} must be finite. Got NaN or infinite values.")
    rounding = (4 * torch.finfo(working_dtype(features)).eps) ** 2 * double(features[0]).square().sum()
    if gram.trace() <= len(gram) * rounding:
        return torch.zeros_like(gram).flatten()
    return center_gram(gram).flatten()


def _products_of(features: Tensor) -> Tensor:
    """A Gram matrix that U-centring turns into that of the features; they are centred before where their mean is large.

    Centring takes a tenth of the time of the product. Without it, float32 loses the digits by which the means are
    larger than the spread, and the traces of the matrix before and after centring tell how many these are.
    """
    gram = features.new_zeros(len(features), len(features), dtype=working_dtype(features))
    add_product(gram, features.flatten(1).to(gram))
    size = double(mirror(gram).diagonal()).sum()
    if size - double(gram).mean(0).sum() > size / _LARGE_MEAN:  # false for NaN
        return gram
    return linear_gram(features)


def _products(grams_a: Mapping[str, Tensor], grams_b: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Inner products of one group: between the networks ``(L_a, L_b)``, and of every layer with itself."""
    stack_a, stack_b = torch.stack(list(grams_a.values())), torch.stack(list(grams_b.values()))
    cross = stack_a @ stack_b.T.to(stack_a.device)
    return cross.cpu(), stack_a.square().sum(1).cpu(), stack_b.square().sum(1).cpu()


def _cka(cross: Tensor, self_a: Tensor, self_b: Tensor) -> Tensor:
    """Normalise; a layer that does not vary at all has no score."""
    scale = (self_a[..., :, None] * self_b[..., None, :]).sqrt()
    return torch.where(scale > 0, cross / scale.clamp(min=torch.finfo(scale.dtype).tiny), torch.nan).clamp(-1, 1)


def _jackknife(products: Sequence[tuple[Tensor, Tensor, Tensor]], confidence: float) -> Tensor | None:
    """Half-widths of the intervals from the scores without one group; ``None`` with too few groups."""
    count = len(products)
    if count < _FEWEST_GROUPS:
        return None
    totals = [sum(parts) for parts in zip(*products)]
    without = torch.stack([_cka(*(total - part for total, part in zip(totals, parts))) for parts in products])
    error = ((count - 1) / count * (without - without.mean(0)).square().sum(0)).sqrt()
    return error * student_t(confidence, count - 1)


def _result(
    points_a: Sequence[Point],
    points_b: Sequence[Point],
    products: Sequence[tuple[Tensor, Tensor, Tensor]],
    examples: int,
    confidence: float,
    group_size: int,
) -> Comparison:
    name = "linear_cka"
    scores = _cka(*(sum(parts) for parts in zip(*products)))
    width = _jackknife(products, confidence)
    notes = [f"Minibatch estimate over {counted(len(products), 'group')} of examples; not the exact value."]
    if width is None:
        notes.append(f"No intervals: they need at least {_FEWEST_GROUPS} groups.")
    missing: dict[str, Tensor | None] = {name: None}
    shapes_a, shapes_b = _shapes(points_a), _shapes(points_b)
    return Comparison(
        layers_a=tuple(p.name for p in points_a),
        layers_b=tuple(p.name for p in points_b),
        measures=(name,),
        scores={name: scores},
        low={name: None if width is None else (scores - width).clamp(min=-1)},
        high={name: None if width is None else (scores + width).clamp(max=1)},
        chance=missing,
        null_p=missing,
        calibrated=missing,
        floor=missing,
        groups={name: find(name).group},
        channels_a=tuple(shape[0] for shape in shapes_a),
        channels_b=tuple(shape[0] for shape in shapes_b),
        dead_a=(),
        dead_b=(),
        shapes_a=shapes_a,
        shapes_b=shapes_b,
        examples=examples,
        seed=0,
        settings={"group size": group_size, "confidence": confidence},
        notes=tuple(notes),
        versions=versions(),
    )


def _shapes(points: Sequence[Point]) -> tuple[tuple[int, ...], ...]:
    """Channels first, then space."""
    return tuple(p.shape if p.channel_dim == 1 else (p.shape[-1], *p.shape[:-1]) for p in points)
