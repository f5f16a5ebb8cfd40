"""Mappings of a model in the format of another tool, each verified numerically."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._io import write_text
from .._result import Result
from .._words import counted
from ..programs import Vertex


@dataclass(frozen=True)
class Proof:
    """The proof of one entry: a random element, applied in every layer to a float64 copy of a network.

    Attributes:
        error: Relative change of the outputs.
        control: The same with one of the tensors left unchanged; it must be large.
        rtol: Largest error that rounding may cause at the lowest precision in the network's code.
        model: The network that was run.
    """

    error: float
    control: float
    rtol: float
    model: str

    @property
    def passed(self) -> bool:
        """Whether the function is kept, and the control shows that this could have failed."""
        return self.error <= self.rtol < self.control


@dataclass(frozen=True)
class Place:
    """One occurrence of an entry: names of modules, or of tensors if no module represents them."""

    writes: tuple[str, ...]
    reads: tuple[str, ...]
    space: str = ""


@dataclass(frozen=True)
class Entry:
    """One mapping, the same in every layer.

    Attributes:
        kind: ``"norm"`` and ``"linear"`` for scales, by the module that writes; ``"R1"``, ``"R2"``; ``"permutation"``.
        writes: Patterns of the modules that write the channels.
        reads: Patterns of the modules that read them.
        places: Its occurrences.
        proof: The numerical proof; ``None`` if nothing could be run.
        note: A remark for users of the tool.
    """

    kind: str
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    places: tuple[Place, ...]
    proof: Proof | None = None
    note: str = ""

    def __str__(self) -> str:
        return f"{', '.join(self.writes)} -> {', '.join(self.reads)}"


@dataclass(frozen=True)
class Absent:
    """Modules that no entry covers, and the reason."""

    modules: tuple[str, ...]
    pattern: str
    reason: str


@dataclass(frozen=True, repr=False)
class Mappings(Result):
    """A model's symmetry in the format of another tool.

    Attributes:
        format: Name of the format.
        model: Name of the model's class.
        entries: The mappings, generalised over layers.
        absent: Modules that are not listed, and why.
        document: The entries in the tool's own format, as plain data.
        python: The same as Python code; empty if the tool takes none.
        notes: Remarks for the reader.
        graph: Modules and their connections, in running order; for drawing.
    """

    format: str
    model: str
    entries: tuple[Entry, ...]
    absent: tuple[Absent, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    notes: tuple[str, ...] = ()
    graph: tuple[Vertex, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether every entry was verified numerically."""
        return all(entry.proof is not None and entry.proof.passed for entry in self.entries)

    def to_yaml(self) -> str:
        """``document`` as YAML."""
        return "\n".join(_yaml(dict(self.document), 0)) + "\n"

    def write(self, path: str | Path) -> Path:
        """Write the document for the tool: ``.yaml``, ``.py`` or ``.json``.

        Raises:
            ValueError: If the suffix is not one of these, or the tool takes no Python.
        """
        path = Path(path)
        texts = {".yaml": self.to_yaml(), ".yml": self.to_yaml(), ".json": f"{json.dumps(self.document, indent=1)}\n"}
        if self.python:
            texts[".py"] = self.python
        if path.suffix not in texts:
            raise ValueError(f"path must end in {', '.join(texts)} for {self.format}. Got {str(path)!r}.")
        return write_text(path, texts[path.suffix])

    def summary(self) -> str:
        """The entries with their proofs, then what is not listed and why."""
        proved = sum(entry.proof is not None and entry.proof.passed for entry in self.entries)
        lines = [
            f"{self.format}: {counted(len(self.entries), 'entry')} of {self.model}, {proved} verified numerically, "
            f"{len(self.absent)} not listed"
        ]
        for entry in self.entries:
            lines.append(f"  {entry}  ({counted(len(entry.places), 'place')}; {_said(entry.proof)})")
            lines += [f"      {entry.note}"] if entry.note else []
        lines += [f"  not listed: {a.pattern} ({counted(len(a.modules), 'place')}): {a.reason}" for a in self.absent]
        return "\n".join([*lines, *self.notes])

    _columns = ("listed", "kind", "writes", "reads", "places", "error", "control", "note")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per entry, then one per reason for what is not listed."""
        rows: list[tuple[Any, ...]] = []
        for e in self.entries:
            error, control = (e.proof.error, e.proof.control) if e.proof else (None, None)
            rows.append((True, e.kind, ", ".join(e.writes), ", ".join(e.reads), len(e.places), error, control, e.note))
        rows += [(False, "", "", a.pattern, len(a.modules), None, None, a.reason) for a in self.absent]
        return [dict(zip(self._columns, row)) for row in rows]


def _said(proof: Proof | None) -> str:
    if proof is None:
        return "not proved"
    error = f"error {proof.error:.1e}" if proof.error else "outputs equal in every digit"
    return f"{'' if proof.passed else 'FAILED: '}{error}, control {proof.control:.1e}"


def _yaml(value: Any, depth: int) -> list[str]:
    """Lines of YAML: block style for mappings and lists, and JSON (which YAML reads) for the rest."""
    indent, lines = "  " * depth, list[str]()
    if not (isinstance(value, dict | list) and value):
        return [f"{indent}{json.dumps(value)}"]
    for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        head = f"{indent}-" if key is None else f"{indent}{key}:"
        inner = _yaml(item, depth + 1)
        if not (isinstance(item, dict | list) and item):
            lines.append(f"{head} {json.dumps(item)}")
        else:
            lines += [head, *inner] if key is not None else [f"{head} {inner[0].lstrip()}", *inner[1:]]
    return lines
