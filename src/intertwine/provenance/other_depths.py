"""Blocks of networks of another depth: which block of one stands where in the other."""

from collections.abc import Iterable, Mapping
from math import log

from torch import Tensor

from ..symmetry.sharded import Renamed

Blocks = dict[str, dict[int, dict[str, str]]]  # stem -> number -> rest of the name -> name


class Renumbered(Renamed):
    """Tensors of ``b`` under the names of ``a``, where blocks were dropped, repeated or renumbered.

    Attributes:
        log_choices: By tensor, the logarithm of the number of blocks that its block was compared with: what a p-value
            pays for the choice.
        places: In words, which block of ``b`` is compared with which of ``a``.
    """

    def __init__(self, state: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        super().__init__(state, names)
        self.log_choices: dict[str, float] = {}
        self.places: list[str] = []


def renumbered(names_of_a: Iterable[str], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Renumbered | None:
    """Put the blocks of ``b`` beside those of ``a`` that they are most like, where the two have other numbers of them.

    Args:
        names_of_a: Tensors to look for.
        a: Tensors of one network; they are read where the numbers of blocks differ only.
        b: Those of the other.

    Returns:
        ``b`` under the names of ``a``, or ``None`` where both have blocks of the same numbers.
    """
    ours, theirs = _blocks(names_of_a), _blocks(b)
    names = {n: n for n in b}
    found = Renumbered(b, names)
    for stem, mine in ours.items():
        other = theirs.get(stem, {})
        if len(mine) == len(other) or not mine or not other or max(len(mine), len(other)) < 2:
            continue
        for n in [n for block in other.values() for n in block.values()]:
            names.pop(n)
        pairs = []
        for i, block in mine.items():
            fits = {j: _likeness(a, b, block, c) for j, c in other.items() if _alike(a, b, block, c)}
            if not fits:
                continue
            j = max(fits, key=lambda k: fits[k])
            names.update({block[rest]: other[j][rest] for rest in block})
            found.log_choices.update(dict.fromkeys(block.values(), log(len(other))))
            pairs.append(f"{i} by {j}")
        found.places.append(f"blocks {stem or 'of the sequence'}: {', '.join(pairs)}")
    return found if found.log_choices else None


def _blocks(names: Iterable[str]) -> Blocks:
    """Names by what stands before, in and after their first number."""
    found: Blocks = {}
    for name in names:
        pieces = name.split(".")
        k = next((k for k, piece in enumerate(pieces) if piece.isdigit()), None)
        if k is not None:
            stem, rest = ".".join(pieces[:k]), ".".join(pieces[k + 1 :])
            found.setdefault(stem, {}).setdefault(int(pieces[k]), {})[rest] = name
    return found


def _alike(a: Mapping[str, Tensor], b: Mapping[str, Tensor], x: dict[str, str], y: dict[str, str]) -> bool:
    return x.keys() <= y.keys() and all(a[x[rest]].shape == b[y[rest]].shape for rest in x)


def _likeness(a: Mapping[str, Tensor], b: Mapping[str, Tensor], x: dict[str, str], y: dict[str, str]) -> float:
    """Mean cosine of the matrices of two blocks."""
    cosines = []
    for rest, name in x.items():
        if a[name].ndim > 1:
            u, v = (t.flatten().double() for t in (a[name], b[y[rest]]))
            cosines.append(float(u @ v) / max(float(u.norm() * v.norm()), 1e-300))
    return sum(cosines) / max(len(cosines), 1)
