"""Symmetric matrices by their lower triangle: half the work of the full product."""

from collections.abc import Iterator

from torch import Tensor


def row_tiles(n: int, tile: int) -> Iterator[slice]:
    """Yield slices of at most ``tile`` rows."""
    for start in range(0, n, tile):
        yield slice(start, min(n, start + tile))


def triangle_tiles(n: int, tile: int, corner: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Yield tiles (rows, columns) that cover the lower triangle; those on the diagonal in pieces of ``corner`` rows."""
    for rows in row_tiles(n, tile):
        for columns in row_tiles(rows.start, tile):
            yield rows, columns
        size, start = rows.stop - rows.start, rows.start
        for inner in row_tiles(size, corner or tile):
            for columns in row_tiles(inner.stop, corner or tile):
                yield _shift(inner, start), _shift(columns, start)


def _shift(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def add_product(gram: Tensor, z: Tensor) -> None:
    """Add ``z z^T`` to the lower triangle of ``gram``, in blocks of rows; the upper triangle is left undefined."""
    n = len(z)
    for rows in row_tiles(n, min(256, max(64, -(-n // 5)))):  # five tiles of rows: 60 % of the full product
        gram[rows, : rows.stop].addmm_(z[rows], z[: rows.stop].T)


def mirror(gram: Tensor) -> Tensor:
    """Copy the lower triangle onto the upper one, in place, so that the matrix is symmetric to the last bit."""
    for rows in row_tiles(len(gram), 512):
        gram[: rows.start, rows] = gram[rows, : rows.start].T
        corner = gram[rows, rows]
        corner.copy_(corner.tril() + corner.tril(-1).T)
    return gram
