"""``intertwine demo``: a first report in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._command import one_thread
from .._options import option
from .._outputs import tell
from . import Study, iw
from .compare import Compare

_MODEL = "digits_cnn"
_SEEDS = (0, 1)
_LOOK_AT = """
Open {page} in a browser. What to look at:
  1. The diagonal of each heat map: does a layer resemble its own counterpart most, though the seeds differ?
  2. The curves: how far each score lies above chance (dashed) and above that of untrained networks (dash-dotted).
     A score means little without them.
  3. G-ReLU beside orthogonal measures: they forgive only what a ReLU network can undo, permuted and rescaled
     channels, and so tell whether single channels agree rather than the space that they span together.
Then compare your own networks: intertwine compare --help"""


class Demo(Study):
    """Train two small ReLU networks on handwritten digits, compare them, write a report.

    Needs no download: scikit-learn brings the digits. Takes about a minute.

    Example:
      intertwine demo --out demo
    """

    python = 'iw.compare(a, b, loader).to_html("report.html")'
    writes = tuple(f"seed{seed}{end}" for seed in _SEEDS for end in (".safetensors", ".json"))

    out: Path = option("Folder for checkpoints, results and report.html.", Path("demo"), metavar="DIR")

    def find(self) -> iw.Comparison | iw.ComparisonSet:
        one_thread()
        count = len(iw.lab.data.load("digits").train)
        tell(f"Training two networks ({_MODEL}) that differ in their seeds only, on {count:,} digits.")
        paths = [self.out / f"seed{seed}.safetensors" for seed in _SEEDS]
        for seed, path in zip(_SEEDS, paths):
            iw.lab.training.train(_MODEL, "digits", "digits", seed=seed, out=path, device="cpu")
        asked: dict[str, Any] = {"checkpoints": paths, "data": "digits", "device": "cpu", "out": self.out}
        return Compare(**asked, line=self.line).find()

    def words(self, found: iw.Comparison) -> str:
        return f"{found.summary()}\n{_LOOK_AT.format(page=self.out / 'report.html')}"
