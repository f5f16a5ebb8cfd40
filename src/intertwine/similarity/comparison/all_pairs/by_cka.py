"""All pairs of layers by centred kernel alignment: one matrix product of stacked Gram matrices."""

from collections.abc import Generator, Iterable, Sequence

import torch
from torch import Tensor

from ...kernels.linear import LinearKernel, linear_gram
from ...measures.cka import CKA, GramSide, prepare_gram
from ..draws import Cells, Draws
from ..layers import Layer, chunks

SHARE = 4  # of the memory, for the Gram matrices of each network
_BLOCK = 1 << 22  # numbers upcast to float64 at a time: 32 MB


def compare_grams(
    measure: CKA, a: Sequence[Layer], b: Sequence[Layer], draws: Draws, memory: int
) -> Generator[None, None, Cells]:
    """Score all pairs with one CKA.

    Every Gram matrix is computed once where all of them fit half of the memory; otherwise B's once per part of A.
    """
    cells = Cells.empty(len(a), len(b), draws)
    size = gram_size(draws.examples, (*a, *b))
    parts_b = list(chunks([size] * len(b), memory, SHARE))
    stack_b: _GramStack | None = None
    for rows in chunks([size] * len(a), memory, SHARE):
        stack_a = _GramStack(len(rows), draws.examples)
        for k, i in enumerate(rows):
            stack_a.put(k, _prepare(measure, a[i], cells))
            yield
        for columns in parts_b:
            if stack_b is None or len(parts_b) > 1:
                stack_b = None  # frees the last part before the next is made
                stack_b = _GramStack(len(columns), draws.examples)
                for k, j in enumerate(columns):
                    stack_b.put(k, _prepare(measure, b[j], cells))
                    yield
            _fill(cells, measure, rows, columns, stack_a, stack_b, draws)
    cells.notes = list(dict.fromkeys(cells.notes))
    return cells


def gram_size(examples: int, layers: Iterable[Layer]) -> int:
    """Bytes of a Gram matrix."""
    return examples**2 * (8 if any(layer.dtype == torch.float64 for layer in layers) else 4)


def _prepare(measure: CKA, layer: Layer, cells: Cells) -> GramSide | None:
    """One layer's side; ``None``, with a note, where its features do not vary."""
    if layer.constant.all():
        cells.notes.append(layer.nothing(measure.name))
        return None
    x = layer.load()
    try:
        if isinstance(measure.kernel, LinearKernel):  # needs no moments of the channels: one pass over features less
            return prepare_gram(linear_gram(x, layer.scale.expand(x.shape[1])), measure.estimator)
        return measure.gram_side(x)
    except ValueError as error:
        cells.notes.append(f"{measure.name} has no score for layer {layer.name!r} of {layer.side}: {error}")
        return None


class _GramStack:
    """Centred Gram matrices of some layers, ``(L, N, N)``, NaN for a layer without one."""

    def __init__(self, count: int, examples: int) -> None:
        self.grams = torch.full((1, 1, 1), torch.nan).expand(count, examples, examples)

    def put(self, position: int, side: GramSide | None) -> None:
        """Place one layer's Gram matrix; the first decides type and device."""
        if side is None:
            return
        if self.grams.stride(1) == 0 or self.grams.dtype != torch.promote_types(self.grams.dtype, side.gram.dtype):
            self.grams = self.grams.to(side.gram).clone(memory_format=torch.contiguous_format)
        self.grams[position] = side.gram

    def __len__(self) -> int:
        return len(self.grams)

    def blocks(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Entries at ``rows`` and ``columns``, ``(L, rows, columns)`` in float64."""
        index, other = rows.to(self.grams.device), columns.to(self.grams.device)
        return torch.stack([g.index_select(0, index).index_select(1, other) for g in self.grams]).double()


def _fill(
    cells: Cells, measure: CKA, rows: Sequence[int], columns: Sequence[int], a: _GramStack, b: _GramStack, draws: Draws
) -> None:
    low, high = measure.range
    box = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    cells.scores[box] = _products(a, b).clamp(low, high)
    for p, order in enumerate(draws.permutations):
        cells.null[(*box, p)] = _products(a, b, order).clamp(low, high)
    if len(draws.halves):
        tables = _FoldSums(a, b, draws, measure.estimator)
        for s, half in enumerate(draws.halves):
            cells.halves[(*box, s)] = tables.half(half).clamp(low, high)
    if low == 0:
        cells.floor[box] = 0.0


def _products(a: _GramStack, b: _GramStack, order: Tensor | None = None) -> Tensor:
    """Inner products of all Gram matrices, which are the scores: in float64, since their norms are 1.

    With an ``order``, after the examples of B were shuffled: centring commutes with shuffling, so that only products
    change; in the matrices' own type, which is enough far from 1.
    """
    n = a.grams.shape[1]
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.grams.device)
    for rows in torch.arange(n, device=a.grams.device).split(max(1, _BLOCK // (n * (len(a) + len(b))))):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        x, y = a.grams[:, part], b.grams[:, part]
        if order is None:
            x, y = x.double(), y.double()
        else:
            there = order.to(b.grams.device)
            y = torch.stack([g.index_select(0, there[part]).index_select(1, there) for g in b.grams]).to(x.dtype)
        total += (x.flatten(1) @ y.flatten(1).T).double()
    return total.cpu()


class _FoldSums:
    """Sums over pairs of folds, from which the CKA of every union of folds follows.

    With ``K`` and ``L`` centred over all examples, centring them again on a subset ``S`` of ``m`` examples gives
    ``<K, L>_S - 2/(m-2) r_K . r_L + s_K s_L / ((m-1)(m-2))`` for the unbiased estimator (zero diagonals), with row sums
    ``r`` and totals ``s`` on ``S``; for the biased one the factors are ``2/m`` and ``1/m^2``.
    """

    def __init__(self, a: _GramStack, b: _GramStack, draws: Draws, estimator: str) -> None:
        self._folds, self._unbiased = draws.folds, estimator == "unbiased"
        parts, n, device = len(draws.folds), draws.examples, a.grams.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self._ab, self._aa, self._bb = (
            zeros(parts, parts, len(a), len(b)),
            zeros(parts, parts, len(a)),
            zeros(parts, parts, len(b)),
        )
        self._rows_a, self._rows_b = zeros(parts, len(a), n), zeros(parts, len(b), n)
        for f, fold in enumerate(draws.folds):
            for g, other in enumerate(draws.folds):
                height = max(1, _BLOCK // (len(other) * (len(a) + len(b))))
                for part in fold.split(height):
                    self._add(f, g, part.to(device), a.blocks(part, other), b.blocks(part, other))

    def _add(self, f: int, g: int, examples: Tensor, x: Tensor, y: Tensor) -> None:
        self._rows_a[g][:, examples] = x.sum(2)
        self._rows_b[g][:, examples] = y.sum(2)
        x, y = x.flatten(1), y.flatten(1)
        self._ab[f, g] += x @ y.T
        self._aa[f, g] += x.square().sum(1)
        self._bb[f, g] += y.square().sum(1)

    def half(self, chosen: Tensor) -> Tensor:
        """CKA of a union of folds, ``(L_a, L_b)``."""
        examples = torch.cat([fold for fold, c in zip(self._folds, chosen) if c]).to(self._ab.device)
        chosen = chosen.to(self._ab.device)
        m = len(examples)
        row_factor, total_factor = (2 / (m - 2), 1 / ((m - 1) * (m - 2))) if self._unbiased else (2 / m, 1 / m**2)
        r_a, r_b = (r[chosen].sum(0)[:, examples] for r in (self._rows_a, self._rows_b))
        s_a, s_b = r_a.sum(1), r_b.sum(1)
        ab, aa, bb = (t[chosen][:, chosen].sum((0, 1)) for t in (self._ab, self._aa, self._bb))
        cross = ab - row_factor * (r_a @ r_b.T) + total_factor * torch.outer(s_a, s_b)
        norm_a = aa - row_factor * r_a.square().sum(1) + total_factor * s_a.square()
        norm_b = bb - row_factor * r_b.square().sum(1) + total_factor * s_b.square()
        return (cross / torch.outer(norm_a.clamp(min=0).sqrt(), norm_b.clamp(min=0).sqrt())).nan_to_num(torch.nan).cpu()
