"""A checkpoint in other names and layouts (fused, split, transposed) under the names of another."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import lgamma, log, prod

from torch import Tensor

from .._words import counted
from .changes.conversions.rows import Rows, view
from .changes.conversions.search import convert
from .lazy_tensors import Lazy

_WAYS = 3  # to read a tensor as rows


@dataclass(frozen=True, eq=False)
class Converted:
    """``b`` under the names of ``a``.

    Attributes:
        state: Its tensors.
        log_choices: By tensor, the logarithm of the number of ways to make it that were open: what a p-value pays.
        note: In words.
    """

    state: Mapping[str, Tensor]
    log_choices: Mapping[str, float]
    note: str


def converted(names: Iterable[str], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Converted | None:
    """Find tensors of ``a`` that ``b`` lacks among those of ``b`` that ``a`` lacks, by what they hold, as in ``diff``.

    Args:
        names: Tensors to look for.
        a: Tensors of one network.
        b: Those of the other.

    Returns:
        ``None`` where nothing is looked for, or nothing found.
    """
    wanted, offered = [n for n in names if n not in b], [n for n in b if n not in a]
    found = convert(a, b, wanted, offered).found if wanted and offered else {}
    if not found:
        return None
    sizes = Counter(b[n].numel() for n in offered)
    cost = {name: _log_choices(rows, b, sizes) for name, rows in found.items()}
    one, rows = next(iter(found.items()))
    shown = f"{one} from {' and '.join(dict.fromkeys(v.name for v in rows.views))}"
    note = f"names and layouts of b differ: {counted(len(found), 'tensor')} found by what they hold, such as {shown}"
    plain = {n: partial(b.__getitem__, n) for n in b}
    return Converted(Lazy(plain | {n: partial(rows.make, b) for n, rows in found.items()}), cost, note)


def _log_choices(rows: Rows, b: Mapping[str, Tensor], sizes: Mapping[int, int]) -> float:
    """Sources and ways to read them; where not all rows are taken, the rows: a regular grid of blocks, or any set."""
    size, count = prod(rows.shape), len(rows.views)
    ways = log(_WAYS) if len(rows.shape) > 1 else 0.0
    if rows.order is None and count == 1:
        return log(sizes[size]) + ways
    cost = count * (log(sum(sizes.values())) + ways) + ways
    if rows.order is None:
        return cost
    n, pool = len(rows.order), sum(view(b[v.name], v.how).shape[0] for v in rows.views)
    if _regular(rows.order):
        return cost + 3 * log(pool)
    return cost + n * log(count) + lgamma(pool + 1) - lgamma(n + 1) - lgamma(pool - n + 1) + log(2 * pool)


def _regular(order: Tensor) -> bool:
    """Whether rows are blocks of one size at one distance, such as the queries of all heads."""
    starts = [0, *((order.diff() != 1).nonzero().flatten() + 1).tolist()]
    size = len(order) / len(starts)
    even = all(start == k * size for k, start in enumerate(starts))
    return even and len(order[starts].diff().unique()) <= 1
