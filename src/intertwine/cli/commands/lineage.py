"""``intertwine lineage``: whether one checkpoint was trained independently of another."""

from dataclasses import dataclass
from pathlib import Path

from .._options import OF_PAGES, ExampleOptions, advanced, argument, page_or_data


@dataclass(frozen=True)
class LineageOptions(ExampleOptions):
    """Test whether two checkpoints were trained independently, from their weights alone.

    Says "derived", with a p-value and the blocks that were, "no sign of descent", or "cannot be told". In place the
    p-value is exact, and tensors are read one at a time, so that checkpoints of any size fit. Where units were moved,
    the networks are matched in memory, and --independent calibrates what that finds. 'tree' finds the families among
    all checkpoints of a folder. Every verdict has exit code 0.

    Example:
      intertwine lineage a.safetensors b.safetensors --model resnet20
      intertwine lineage one_directory another --model hf:one_directory --out lineage.html
      intertwine lineage tree checkpoints --model resnet20 --out tree.html
      intertwine lineage a.safetensors b.safetensors --independent seed1.safetensors --independent seed2.safetensors ...
    """

    suffixes = OF_PAGES

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If paths are not two checkpoints, or 'tree' and a folder.
        """
        super().check()
        if len(self.paths) != 2:
            raise ValueError(f"lineage must be given A and B, or tree and DIR. Got {len(self.paths)} paths.")
        if str(self.paths[0]) == "tree":
            if not self.paths[1].is_dir():
                raise ValueError(f"DIR must be a folder of checkpoints. Got {str(self.paths[1])!r}.")
        elif self.paths[0].resolve() == self.paths[1].resolve():
            raise ValueError(f"B must be another checkpoint than A. Got {str(self.paths[0])!r} twice.")

    paths: list[Path] = argument(
        ..., "Two checkpoints (files, or folders of shards), or a folder of checkpoints.", metavar="A B | tree DIR"
    )
    model: str | None = None
    independent: list[Path] | None = advanced(
        None,
        "A checkpoint known to be independent of A, such as another seed; repeat it, at least four times.",
        metavar="FILE",
    )
    level: float = advanced(1e-06, "p-value from which on independence is rejected.", min=0, max=1)
    out: Path | None = page_or_data()
    as_json: bool = False
