"""Symmetric matrices by their lower triangle: half the work of the full product."""

from collections.abc import Iterator

from torch import Tensor

__all__ = ["add_product", "mirror", "row_tiles"]


def row_tiles(n: int, tile: int) -> Iterator[slice]:
    """Yield slices of at most ``tile`` rows."""
    for start in range(0, n, tile):
        yield slice(start, min(n, start + tile))


def add_product(gram: Tensor, z: Tensor) -> None:
    """Add ``z z^T`` to the lower triangle of ``gram``, in blocks of rows; the upper triangle is left undefined.

    Args:
        gram: ``(N, N)``, changed in place.
        z: ``(N, F)`` of the same type.
    """
    n = len(z)
    for rows in row_tiles(n, min(512, max(128, n // 4))):
        gram[rows, : rows.stop].addmm_(z[rows], z[: rows.stop].T)


def mirror(gram: Tensor) -> Tensor:
    """Copy the lower triangle onto the upper one, in place, so that the matrix is symmetric to the last bit."""
    for rows in row_tiles(len(gram), 512):
        gram[: rows.start, rows] = gram[rows, : rows.start].T
        corner = gram[rows, rows]
        corner.copy_(corner.tril() + corner.tril(-1).T)
    return gram
