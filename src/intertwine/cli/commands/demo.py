"""``intertwine demo``: a first report in a minute."""

from dataclasses import dataclass
from pathlib import Path

from .._options import Options, option


@dataclass(frozen=True)
class DemoOptions(Options):
    """Train two small ReLU networks on handwritten digits, compare them, write a report.

    Needs no download: scikit-learn brings the digits. Takes about a minute.

    Example:
      intertwine demo --out demo
    """

    out: Path = option(Path("demo"), "Folder for checkpoints, results and report.html.", metavar="DIR")
    as_json: bool = False
