"""Fingerprint: a short string that symmetric copies of a network share."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ..._io.codec import encode
from ..action import check_states, check_ties, moved, tensors_of
from ..blocks import Block, align, blocks, parent_dims
from ..coupling import coupled, restricted
from ..find import symmetries
from ..spaces import Fixed, Layout, Leaf
from ..symmetry import Symmetry
from .bases import passing
from .canonical import balanced, check_weights, fold

_NUMBERS = 12
_STEP = 0.05  # rounding step; numbers of different networks are 0.6 to 1 apart


@in_usual_mode
def fingerprint(model: nn.Module | Mapping[str, Tensor], example_inputs: Any, sym: Symmetry | None = None) -> str:
    """A short string that in practice is equal for symmetric copies of a network and different for other weights.

    It covers only what tensors show. Networks with the same weights but different settings, such as ``rope_theta``, an
    epsilon, or another activation of the same kind, share the string although they compute different functions; so do
    networks whose masks, integers or complex numbers differ. ``same`` distinguishes them.
    It is invariant only under the group. A copy with a rotated stream has another string, even once both are folded; a
    copy with folded biases or means of norms shares it once both are folded.

    The form is ``"iw2-<architecture>-<weights>"``: a hash of the layouts, and a hash of twelve numbers that no
    permutation, scale, sign or change of basis alters, rounded to multiples of 0.05. No such string can be safe, since
    a number may lie on a rounding boundary. Measured on an MLP, a CNN with batch norm and a transformer encoder layer,
    40 random networks each with 5 or 2 random copies in float32: 0 of 480 copies missed, and 0 of 2,340 pairs of
    networks collided. The numbers of copies differ by at most 7e-7, so about 1 miss in 3,000 is to be expected; those
    of different networks differ by at least 0.63. Copies that went through bfloat16 do miss: wherever the answer
    matters, use ``same``, which decides by matching. Weights between two linear spaces that nothing reaches or reads
    have no normal form and are left out.

    Args:
        model: The model; with ``sym`` a state dict, read one group of coupled tensors at a time.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        sym: The model's symmetry, if it is already known.

    Returns:
        The string, 29 characters.

    Raises:
        TypeError: If the symmetry of a state dict is not given.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(model, torch.zeros(2, 4))
        >>> twin = sym.act(sym.random(seed=1), model)
        >>> fingerprint(model, torch.zeros(2, 4)) == fingerprint(twin, torch.zeros(2, 4))
        True
    """  # noqa: DOC502 - raised by what it calls
    if isinstance(model, Mapping):
        return fingerprint_state(check_states(sym, model=model)[0], model)
    return fingerprint_state(sym or symmetries(model, example_inputs), tensors_of(model))


def fingerprint_state(sym: Symmetry, state: Mapping[str, Tensor]) -> str:
    """The fingerprint of a state dict, read one group of coupled tensors at a time, so that it may load them lazily."""
    check_ties(sym, state)
    numbers = [round(float(x) / _STEP) for x in invariants(sym, state)]
    described = {name: encode(layout, Layout) for name, layout in sorted(sym.layouts.items())}
    return f"iw2-{_digest(described, 4)}-{_digest(numbers, 8)}"


def invariants(sym: Symmetry, state: Mapping[str, Tensor]) -> Tensor:
    """The twelve numbers behind a fingerprint, in float64 before rounding: random combinations of three per tensor.

    Two are sums over the tensor's entries in the balanced network, of ``w`` (``|w|`` if signs or bases are free) and
    ``w^2``, relative to its size, with random weights along fixed axes, so that swapped inputs or outputs show. The
    third is the logarithm of its norm.
    """
    total, count = torch.zeros(_NUMBERS, dtype=torch.float64), 0
    for names in coupled(sym):
        group = {name: state[name] for name in names if name in state}
        part = restricted(sym, names)
        check_weights(part, group)
        folded = fold(part, group)
        g = balanced(folded)
        normal = {**folded.state, **moved(folded.sym, g, folded.state)}
        seen = passing(folded.sym, normal)
        for name, layout in folded.sym.layouts.items():
            mix = torch.randn(3, _NUMBERS, generator=_generator(name), dtype=torch.float64)
            total += torch.stack(_sums(name, normal[name], blocks(layout), folded.sym, seen)) @ mix
            count += 1
    return total / max(count, 1) ** 0.5


def _sums(
    name: str, tensor: Tensor, pieces: tuple[Block, ...], sym: Symmetry, seen: Mapping[str, Tensor]
) -> list[Tensor]:
    generator = _generator(name)
    first, second, squares = torch.zeros(3, dtype=torch.float64)
    for block in pieces:
        x = block.read(tensor)
        free = any(isinstance(f, Leaf) and (f.space in sym.mixing or any(e % 2 for e in f.sign)) for f in block.leaves)
        weights = torch.ones((), dtype=torch.float64)
        for dim, leaf in enumerate(block.leaves):
            if isinstance(leaf, Fixed) and leaf.size > 1:
                along = torch.randn(leaf.size, generator=generator, dtype=torch.float64)
                weights = weights * align(along, [dim], x.ndim)
            elif isinstance(leaf, Leaf) and leaf.space in seen and not bool(seen[leaf.space].all()):
                dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
                x = x * align(seen[leaf.space], dims, x.ndim)
        squares = squares + x.square().sum()
        first = first + ((x.abs() if free else x) * weights).sum()
        second = second + (x.square() * weights).sum()
    if not squares > 0:
        return [torch.zeros((), dtype=torch.float64)] * 3
    mean = squares / tensor.numel()
    return [first / squares.sqrt(), second / (mean * tensor.numel() ** 0.5), squares.log() / 2]


def _generator(name: str) -> torch.Generator:
    seed = int.from_bytes(hashlib.blake2s(name.encode(), digest_size=7).digest(), "big")
    return torch.Generator().manual_seed(seed)


def _digest(value: Any, size: int) -> str:
    return hashlib.blake2s(json.dumps(value, sort_keys=True).encode(), digest_size=size).hexdigest()
