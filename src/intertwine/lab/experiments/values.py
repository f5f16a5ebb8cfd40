"""Raw values of an experiment: one tidy table, a row for each measured number, from which everything else follows.

Pages, intervals and verdicts are computed from this table alone; saved as Parquet, it can be analysed with pandas too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._io import write_atomically
from ..._words import first_line
from ...errors import DataError
from ..statistics import Sample, mean_of

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
_TEXT = ("experiment", "arm", "network", "partner", "layer", "partner_layer", "statistic")
_WHOLE = ("block", "images", "draws")
COLUMNS = {**dict.fromkeys(_TEXT, "str"), "value": "float64", **dict.fromkeys(_WHOLE, "int64")}
"""Columns and their types. ``arm``: what was done or which kind of network; ``network`` and ``partner``: which network
(by seed), and which one it is paired with; ``layer`` and ``partner_layer``: where it was measured; ``block``: block of
test images, -1 for all of them; ``statistic``: what was measured; ``images``: number of test images behind the value,
0 unless it is a share of images; ``draws``: number of random draws that it is the mean of, 0 for none."""

_DEFAULTS: Mapping[str, Any] = {**dict.fromkeys(_TEXT, ""), "value": None, "block": -1, "images": 0, "draws": 0}
_KEY = b"intertwine"


class Values:
    """All numbers that an experiment measured, one in a row with ``COLUMNS``, and the facts of its run.

    Facts are scale, data, seed, versions, commit, hours, notes.
    """

    def __init__(self, frame: pd.DataFrame, facts: Mapping[str, Any]) -> None:
        self.frame, self.facts = frame, dict(facts)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], facts: Mapping[str, Any]) -> Values:
        """The table of rows given as dictionaries; missing columns stay empty, unknown ones are a ``ValueError``."""
        import pandas as pd

        listed = [{**_DEFAULTS, **row} for row in rows]
        if unknown := sorted({name for row in listed for name in row} - set(COLUMNS)):
            raise ValueError(f"rows must have the columns {', '.join(COLUMNS)} only. Got {', '.join(unknown)}.")
        return cls(pd.DataFrame(listed, columns=list(COLUMNS)).astype(COLUMNS), facts)

    def save(self, path: Path) -> Path:
        """Write the table as Parquet, atomically, the facts in its metadata."""
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.Table.from_pandas(self.frame, preserve_index=False)
        said = json.dumps({"format": FORMAT, "rows": len(self.frame), "facts": self.facts}, sort_keys=True)
        table = table.replace_schema_metadata({_KEY: said.encode()})
        return write_atomically(path, lambda temporary: parquet.write_table(table, temporary, compression="zstd"))

    @classmethod
    def load(cls, path: str | Path) -> Values:
        """The table that ``save`` wrote; a ``DataError`` if it is missing, damaged, or of another version."""
        from pyarrow import ArrowException, parquet

        path = Path(path)
        place, again = repr(str(path)), f"Make it again with: intertwine reproduce {path.stem}."
        refused = lambda rule, got: DataError(f"values must {rule}. Got {got}. {again}")
        if not path.is_file():
            raise refused("be a Parquet file of an experiment", f"nothing at {place}")
        try:
            table = parquet.read_table(path)
            found = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
            said = found if isinstance(found, dict) else {}
        except (ArrowException, OSError, ValueError) as error:
            raise refused("be readable Parquet", f"{place} ({first_line(error)})") from None
        if said.get("format") != FORMAT:
            got = f"{said.get('format', 'none')} in {place}, which another version wrote"
            raise refused(f"be of format {FORMAT}", got)
        facts, rows = said.get("facts") or {}, said.get("rows", len(table))
        if not (isinstance(facts, dict) and len(table) == rows and rows):
            raise refused("be whole", f"{len(table)} rows of {rows} in {place}")
        if missing := [name for name in COLUMNS if name not in table.column_names]:
            raise refused(f"have a column {missing[0]!r}", f"none in {place}")
        try:
            frame = table.to_pandas()[list(COLUMNS)].astype(COLUMNS)
        except (ValueError, TypeError) as error:
            raise refused("have the columns' types", f"{place} ({error})") from None
        return cls(frame, facts)

    @cached_property
    def _groups(self) -> dict[tuple[str, str, str, str], list[tuple[str, str, int, float, int]]]:
        """Network, partner, block, value and images by statistic, arm, layer and partner layer, in file order."""
        found: dict[tuple[str, str, str, str], list[tuple[str, str, int, float, int]]] = {}
        keys = ["statistic", "arm", "layer", "partner_layer", "network", "partner", "block", "value", "images"]
        for statistic, arm, layer, other, network, partner, block, value, images in self.frame[keys].itertuples(False):
            found.setdefault((statistic, arm, layer, other), []).append((network, partner, block, value, images))
        return found

    def sample(self, statistic: str, arm: str = "", layer: str = "", partner_layer: str = "") -> Sample:
        """The numbers of one statistic, by network or pair of networks; unknown ones (NaN) are left out.

        For shares of test images, the variance over images is binomial unless there are several blocks.
        """
        by: dict[tuple[str, ...], dict[int, float]] = {}
        images = 0
        for network, partner, block, value, count in self._groups.get((statistic, arm, layer, partner_layer), ()):
            if not np.isnan(value):
                by.setdefault((network, partner) if partner else (network,), {})[block] = value
                images = count if block < 0 else 0
        numbers = {key: np.array([parts[b] for b in sorted(parts)]) for key, parts in by.items()}
        share = float(np.clip(np.mean([v.mean() for v in numbers.values()]), 0, 1)) if numbers else 0.0
        return Sample(numbers, share * (1 - share) / images if images else 0.0)

    def by_layer(self, statistic: str, arm: str = "", diagonal: bool = False) -> dict[str, Sample]:
        """A sample for each layer, in the order of the file; with ``diagonal``, of each layer against itself."""
        found = {}
        for s, a, layer, other in self._groups:
            if (s, a) == (statistic, arm) and other == (layer if diagonal else ""):
                found[layer] = self.sample(s, a, layer, other)
        return found

    def statistics(self, start: str) -> dict[str, str]:
        """Names of the statistics that begin with ``start``, by the rest of the name, in the order of the file."""
        return {name.removeprefix(start): name for name in self.frame["statistic"].unique() if name.startswith(start)}

    def arms(self, statistic: str) -> list[str]:
        """All arms that have the statistic, in the order of the file."""
        return list(dict.fromkeys(arm for s, arm, *_ in self._groups if s == statistic))

    def averaged(self, statistic: str, arm: str = "") -> Sample:
        """Mean over layers, network by network."""
        return mean_of(self.by_layer(statistic, arm).values())

    def number(self, statistic: str, arm: str = "", layer: str = "") -> float:
        """One number that belongs to no network, such as a mathematical one; there must be exactly one."""
        found = self._groups.get((statistic, arm, layer, ""), [])
        if len(found) != 1:
            raise ValueError(f"values must hold one {statistic!r}. Got {len(found)}.")
        return found[0][3]

    def digest(self) -> str:
        """A hash of every number, bit by bit, and of its other columns; facts do not count."""
        ordered = self.frame.sort_values(list(COLUMNS), kind="stable")
        hashed = hashlib.blake2b(digest_size=16)
        for name in COLUMNS:
            column = ordered[name]
            text = "\n".join(map(float.hex, column)) if name == "value" else "\n".join(map(str, column))
            hashed.update(f"{name}\n{text}\n".encode())
        return hashed.hexdigest()


def first_difference(kept: Values, found: Values, relative: float = 0.0) -> str:
    """Where two tables differ, in words; empty if by at most ``relative`` times a statistic's largest number."""
    keys = [name for name in COLUMNS if name != "value"]
    one, two = (v.frame.sort_values(keys, kind="stable").reset_index(drop=True) for v in (kept, found))
    if len(one) != len(two) or not one[keys].equals(two[keys]):
        other = set(map(tuple, one[keys].to_numpy().tolist())) ^ set(map(tuple, two[keys].to_numpy().tolist()))
        where = ", ".join(str(part) for part in next(iter(sorted(other)), ()) if part not in ("", -1, 0))
        return f"{len(other)} rows are in one table only, such as {where}" if other else "some rows are repeated"
    a, b = one["value"].to_numpy(), two["value"].to_numpy()
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= relative * one["value"].abs().groupby(one["statistic"]).transform("max").to_numpy()
    unequal = ~((a == b) | (np.isnan(a) & np.isnan(b)) | near)
    if not unequal.any():
        return ""
    first = int(np.argmax(unequal))
    where = ", ".join(str(part) for part in one.loc[first, keys] if part not in ("", -1, 0))
    told = f"{float(a[first])!r} kept, {float(b[first])!r} found"
    return f"{int(unequal.sum())} of {len(a)} numbers differ, such as {where}: {told}"
