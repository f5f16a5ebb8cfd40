"""Pairs of many networks as jobs: workers score them on this machine or on a Ray cluster, and any of them may die."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .._io import versions
from ..similarity.comparison.many import Tile, Work
from .runs import Executor, Job, Jobs, RunError, run

__all__ = ["ScoredTile", "by_jobs"]


class ScoredTile(Job):
    """Scores of a tile of pairs (:class:`intertwine.similarity.comparison.many.Tile`)."""

    code: ClassVar[str | None] = versions()["intertwine"]
    tile: Tile

    def run(self, files: Path) -> dict[str, Any]:
        """Score the pairs from what the networks' passes kept."""
        return self.tile.scored()

    @property
    def label(self) -> str:
        """The layer, and the first and last networks of either side."""
        sides = (f"{side[0][0]} to {side[-1][0]}" for side in (self.tile.rows, self.tile.columns))
        return f"{self.tile.layer}: {' with '.join(sides)}"


def by_jobs(folder: str | Path, executor: Executor | None = None, *, progress: bool = True) -> Work:
    """What ``compare_many`` takes as ``work``: pairs are jobs, whose results stay in ``folder / "pairs"``.

    A call that was stopped, or a worker that died, loses no tile that was finished; another call with the same folders
    scores what is missing, and so does ``intertwine runs resume pairs --runs FOLDER``.

    Workers must see this folder of runs, and that of ``compare_many``, under the same path. ``Local()`` scores unless
    another executor is given, which is closed at the end.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from torch import nn
        >>> import intertwine as iw
        >>> from intertwine.lab.runs import InProcess
        >>> folder = tempfile.mkdtemp()
        >>> nets = {name: nn.Sequential(nn.Linear(5, 8), nn.ReLU()) for name in "abc"}
        >>> work = iw.lab.tiles.by_jobs(folder, InProcess(), progress=False)
        >>> found = iw.compare_many(nets, torch.randn(300, 5).split(100), folder=folder, work=work, progress=False)
        >>> tuple(found.matrix("linear_cka", "1").shape)
        (3, 3)
    """

    def work(tiles: Sequence[Tile]) -> Iterable[Mapping[str, Any]]:
        listed = tuple(ScoredTile(tile=tile) for tile in tiles)
        report = run(Jobs(name="pairs", listed=listed), folder, executor=executor, progress=progress)
        if report.failed:
            label, error = next(iter(report.failed.items()))
            raise RunError(f"pairs must all be scored. Got {len(report.failed)} failed tiles, {label}: {error}.")
        return report.values

    return work
