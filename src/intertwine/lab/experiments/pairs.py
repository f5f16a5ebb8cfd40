"""Pairs of networks: jobs on two of them, and how pairs are drawn from a zoo."""

import itertools
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn

from ..runs import Job
from ..training import choose_device, load_checkpoint
from ..zoo import Member, Zoo
from .experiment import Setting

Pairs = list[tuple["Member", "Member"]]


class PairJob(Job):
    """What is done with two networks."""

    gpus: ClassVar[float] = 0.5

    a: str  # Checkpoint of network A
    b: str  # Checkpoint of network B
    data: str  # As ``lab.data.load`` takes it
    device: str = "auto"  # Where the networks run

    @property
    def label(self) -> str:
        """The two networks."""
        return " and ".join(f"{Path(path).parent.name[:24]}/{Path(path).stem}" for path in (self.a, self.b))

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Both, on their device; on a CPU in the layout in which convolutions are fast."""
        device = choose_device(self.device)
        layout = torch.channels_last if device.type == "cpu" else torch.preserve_format
        a, b = (cast(Any, load_checkpoint(path)).to(device, memory_format=layout) for path in (self.a, self.b))
        return a, b


def checkpoints(pair: tuple[Member, Member]) -> dict[str, Any]:
    """The two checkpoints of a pair, as a :class:`PairJob` takes them."""
    a, b = pair
    return {"a": str(a.path.resolve()), "b": str(b.path.resolve())}


def names_of(pairs: Pairs) -> list[tuple[str, str]]:
    """The two names of each pair, as intervals over models take them."""
    return [(a.name, b.name) for a, b in pairs]


def ring(zoo: Zoo) -> Pairs:
    """Each member with the next one, the last with the first: the fewest pairs that hold all members equally often."""
    return list(zip(zoo.members, [*zoo.members[1:], zoo.members[0]], strict=True))


def pairs_at(setting: Setting, zoo: Zoo, few: int, many: int) -> Pairs:
    """Ordered pairs of a zoo.

    Args:
        setting: Scale and seed.
        zoo: The networks.
        few: Pairs below the scale ``paper``: disjoint where there are networks enough, else each network into the next,
            the next but one and so on, because in few drawn pairs one network is often part of all, which leaves no
            interval over networks.
        many: Pairs at the scale ``paper``, drawn as the paper does.
    """
    members, n = list(zoo.members), len(zoo)
    if setting.scale == "paper":
        return zoo.pairs(many, seed=setting.seed)
    if 2 * few <= n:
        return list(zip(members[: 2 * few : 2], members[1 : 2 * few : 2]))
    shifted = [(members[k], members[(k + shift) % n]) for shift in range(1, n) for k in range(n)]
    return shifted[:few]


def all_pairs(zoo: Zoo, ordered: bool, most: int, seed: int) -> Pairs:
    """Every pair of distinct members, or ``most`` that are drawn from them where there are more."""
    choose = itertools.permutations if ordered else itertools.combinations
    every = list(choose(zoo.members, 2))
    return every if len(every) <= most else zoo.pairs(most, seed)
