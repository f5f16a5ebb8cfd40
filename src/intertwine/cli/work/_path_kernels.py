"""Path kernels in commands: how many examples they can take, and whole networks compared by them."""

from typing import Any

import torch
from torch import Tensor, nn

from ... import gates as library
from ...gates.kernels.alignment import kernel_alignment, path_kernel_of

_EXAMPLES = 60
_OPERATIONS = 1e10  # a minute or two on a CPU
_SHUFFLES = 200


def affordable(model: nn.Module, x: Tensor, wanted: int | None) -> tuple[int, list[str]]:
    """How many examples path kernels take, and what to say where that is fewer than usual."""
    if wanted is not None:
        return wanted, []
    cost = library.neural_path_kernel_cost(model, x[:_EXAMPLES])
    if cost <= _OPERATIONS:
        return _EXAMPLES, []
    count = max(8, int(_EXAMPLES * (_OPERATIONS / cost) ** 0.5))
    note = (
        f"The kernels take {count} examples, since {_EXAMPLES} would need {cost:.0e} operations in this network. "
        "Say --kernel-examples for more."
    )
    return count, [note]


def alignment(a: nn.Module, b: nn.Module, x: Tensor, seed: int) -> tuple[dict[str, Any], str]:
    """Two whole networks by their neural path kernels: the alignment, and what shuffled examples would give."""
    given = [x.to(next(model.parameters()).device) for model in (a, b)]
    count = min(len(x), *(affordable(model, z, None)[0] for model, z in zip((a, b), given)))
    left, right = (path_kernel_of(m, z[:count], name).cpu() for name, m, z in zip("AB", (a, b), given))
    found = kernel_alignment(left, right)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(count, generator=generator) for _ in range(_SHUFFLES)]
    shuffled = [kernel_alignment(left, right[order][:, order]) for order in orders]
    p = (1 + sum(s >= found for s in shuffled)) / (1 + _SHUFFLES)
    numbers = {"alignment": found, "chance": sum(shuffled) / _SHUFFLES, "p": p, "examples": count}
    return numbers, (
        f"The neural path kernels of the whole networks are aligned to {found:.3f} on {count} examples (chance "
        f"{numbers['chance'] + 0.0:.3f}, p {p:.3g}); 1 would mean the same up to symmetry."
    )
