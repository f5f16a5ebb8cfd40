"""Sketches of networks: a few weights of every tensor, by which pairs worth an exact test are found."""

from collections.abc import Mapping, Sequence
from zlib import crc32

import torch
from torch import Tensor

from ..independence.in_place import checked

_WEIGHTS = 256  # of every tensor


def sketch(names: Sequence[str], state: Mapping[str, Tensor], side: str) -> dict[str, Tensor]:
    """Weights at random places that depend on a tensor's name and shape alone, centred, of norm 1.

    Args:
        names: Tensors to look at.
        state: Tensors of one network, read one at a time; those that are missing are left out.
        side: What to call the network in messages.
    """
    found = {}
    for name in names:
        if name not in state or state[name].numel() < 2:
            continue
        x = checked(state[name], name, side)
        g = torch.Generator().manual_seed(crc32(f"{name} {tuple(x.shape)}".encode()))
        places = torch.randint(x.numel(), (_WEIGHTS,), generator=g).unique() if x.numel() > _WEIGHTS else slice(None)
        picked = x.flatten()[places].double()
        picked = picked - picked.mean()
        if float(picked.norm()) > 0:
            found[name] = picked / picked.norm()
    return found


def sketch_scores(sketches: Sequence[Mapping[str, Tensor]], shapes: Sequence[Mapping[str, tuple[int, ...]]]) -> Tensor:
    """Likeness of all pairs in standard deviations of unrelated weights, ``(N, N)``; ``-inf`` on the diagonal.

    Tensors that a pair does not share in one shape are left out. The largest tensor-wise mean counts, so that a pair
    that shares a few tensors only is found as well.
    """
    count = len(sketches)
    total, weight, best = (torch.zeros(count, count, dtype=torch.float64) for _ in range(3))
    for name in dict.fromkeys(n for s in sketches for n in s):
        holders: dict[tuple[int, ...], list[int]] = {}
        for k, s in enumerate(sketches):
            if name in s:
                holders.setdefault(shapes[k][name], []).append(k)
        for rows in holders.values():
            x = torch.stack([sketches[k][name] for k in rows])
            cosine = x @ x.mT * x.shape[-1] ** 0.5
            index = torch.tensor(rows)
            mesh = index[:, None], index[None, :]
            total[mesh] += cosine
            weight[mesh] += 1
            best[mesh] = torch.maximum(best[mesh], cosine - 2)  # the largest of many is larger
    return torch.maximum(total / weight.clamp_min(1).sqrt(), best).fill_diagonal_(-torch.inf)
