"""``intertwine demo``: a first report in a minute."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import Json, Options


@dataclass(frozen=True)
class DemoOptions(Options):
    """Train two small ReLU networks on handwritten digits, compare them, write a report.

    Needs no download: scikit-learn brings the digits. Takes about a minute.

    Example:
      intertwine demo --out demo
    """

    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for checkpoints, results and report.html.")
    ] = Path("demo")
    as_json: Json = False
