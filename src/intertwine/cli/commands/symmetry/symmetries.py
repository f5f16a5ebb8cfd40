"""``intertwine symmetries``: the group that an architecture has."""

from dataclasses import dataclass
from pathlib import Path

from ..._options import OF_PAGES, NetworkOptions, option, page_or_data


@dataclass(frozen=True)
class SymmetriesOptions(NetworkOptions):
    """Find the weight-space symmetries of an architecture, and say what restricts them.

    Prints one line for every hidden space: its size, its group, the generators of scales and signs, and which operation
    takes away the rest. The page draws where in the network each space lives. No weights are needed.

    Example:
      intertwine symmetries resnet20 --out resnet20.html
      intertwine symmetries mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --meta
      intertwine symmetries resnet20 --explain layer1.0.conv1.weight
    """

    suffixes = OF_PAGES

    explain: str | None = option(None, "Say of one parameter why each axis moves or stays.", metavar="NAME")
    out: Path | None = page_or_data()
    as_json: bool = False
