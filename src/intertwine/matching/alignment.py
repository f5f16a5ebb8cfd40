"""The result of aligning two networks: the element that moves one into the other's basis, and how well it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from .._io import write_tensors
from .._result import Result
from .._untrusted.weights import check_weights_file
from ..errors import CheckpointError
from ..symmetry.element import displaced
from ..symmetry.explain import group_of
from ..symmetry.symmetry import Symmetry
from ..symmetry.transformation import KINDS, Transformation, from_tensors, to_tensors

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Alignment"]

_KIND = "intertwine.Alignment"


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Result):
    """How network ``b`` is brought into the basis of network ``a``.

    ``transformation`` acts on ``b``: ``symmetry.act(transformation, b)`` computes the function of ``b`` with units in
    the order, at the scale and in the bases of ``a``. ``~transformation`` moves ``a`` into the basis of ``b``.

    Attributes:
        method: Name of the solver.
        symmetry: The symmetry of the architecture.
        transformation: The element that moves ``b``.
        objective: What the solver maximised; by weights it is the sum of ``<a, g b>`` over tensors in balanced
            coordinates.
        history: The objective along the way of the best start.
        starts: The objective that every start reached.
        quality: By space, for every unit of ``a`` the cosine in [-1, 1] between its weights and those of the unit of
            ``b`` that was moved to its place, ``(p..., n)``; NaN for a unit without weights.
        before: Distance ``|a - b| / |a|`` of the weights in balanced coordinates, before.
        after: The same after ``b`` was moved.
        kinds: Kinds of elements that were searched.
        seconds: Time taken; it is not saved, so that the same seed gives the same file.
        seed: Seed of starts and orders.
        notes: What a reader must know.

    Examples:
        >>> import intertwine as iw
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(a, torch.zeros(2, 4))
        >>> b = sym.act(sym.random(seed=1), a)
        >>> found = iw.align(a, b, torch.zeros(2, 4))
        >>> iw.testing.assert_same_function(b, found.apply(b), torch.randn(5, 4))
        >>> all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a.parameters(), found.apply(b).parameters()))
        True
    """

    method: str
    symmetry: Symmetry
    transformation: Transformation
    objective: float
    history: tuple[float, ...]
    quality: Mapping[str, Tensor]
    before: float
    after: float
    kinds: tuple[str, ...]
    seconds: float
    seed: int = 0
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def apply(self, b: nn.Module) -> nn.Module:
        """A copy of ``b`` in the basis of ``a``: other weights, the same function.

        Args:
            b: The network that was aligned, or another checkpoint in the same basis. It is left as it is.

        Returns:
            A new module.
        """
        return self.symmetry.act(self.transformation, b)

    def to_frame(self) -> pd.DataFrame:
        """One row per space: its group, how many units moved, and how well units fit."""
        import pandas as pd

        return pd.DataFrame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for space in self.symmetry.spaces:
            cosines = self.quality[space.name].flatten()
            known = cosines[~cosines.isnan()]
            e = self.transformation[space.name]
            rows.append(
                {
                    "space": space.name,
                    "units": e.permutation.numel(),
                    "group": group_of(space),
                    "moved": displaced(e),
                    "flipped": int((e.signs < 0).sum()),
                    "scale": float(e.scales.abs().amax()) if e.scales.numel() else 0.0,
                    "cosine": float(known.mean()) if len(known) else float("nan"),
                    "worst": float(known.min()) if len(known) else float("nan"),
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        tensors, spaces = to_tensors(self.transformation)
        arrays = {name: _to_lists(x) for name, x in tensors.items()}
        return {**self._described(), "transformation": {"spaces": spaces, "arrays": arrays}}

    def _described(self) -> dict[str, Any]:
        """All but the transformation, as plain JSON data."""
        return {
            "method": self.method,
            "symmetry": self.symmetry.to_dict(),
            "objective": self.objective,
            "history": list(self.history),
            "quality": {name: _to_lists(cosines) for name, cosines in self.quality.items()},
            "before": self.before,
            "after": self.after,
            "kinds": list(self.kinds),
            "seed": self.seed,
            "starts": list(self.starts),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild an alignment from ``to_dict``'s data."""
        saved = data["transformation"]
        arrays = {name: _from_lists(x) for name, x in saved["arrays"].items()}
        return cls._rebuilt(data, from_tensors(arrays, saved["spaces"]))

    @classmethod
    def _rebuilt(cls, data: dict[str, Any], transformation: Transformation) -> Self:
        values = {
            "seconds": 0.0,
            **data,
            "transformation": transformation,
            "symmetry": Symmetry.from_dict(data["symmetry"]),
        }
        values["quality"] = {name: _from_lists(cosines) for name, cosines in values["quality"].items()}
        for name in ("history", "kinds", "starts", "notes"):
            values[name] = tuple(values[name])
        return cls(**values)

    def save(self, path: str | Path) -> Path:
        """Write the alignment as ``.safetensors`` or ``.json``, or its table as ``.parquet``, atomically.

        ``load`` reads the first two back exactly; safetensors are smaller.

        Args:
            path: Where to write.

        Returns:
            The path written.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            return super().save(path)
        tensors, described = to_tensors(self.transformation)
        metadata = {"kind": _KIND, "spaces": json.dumps(described), "alignment": json.dumps(self._described())}
        return write_tensors(path, tensors or {"empty": torch.zeros(0)}, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an alignment that ``save`` wrote as ``.safetensors`` or ``.json``.

        Raises:
            CheckpointError: If the file is missing or holds something else.
        """
        if Path(path).suffix == ".json":
            return super().load(path)
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(check_weights_file(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"path must be an alignment saved as .safetensors. Got {str(path)!r} ({error})."
            ) from None
        if metadata.get("kind") != _KIND:
            raise CheckpointError(
                f"path must hold an Alignment written by save(). Got {metadata.get('kind')!r} in {str(path)!r}."
            )
        try:
            spaces = json.loads(metadata["spaces"])
            return cls._rebuilt(json.loads(metadata["alignment"]), from_tensors(tensors, spaces))
        except Exception as error:  # a file that was changed may fail anywhere
            raise CheckpointError(
                f"path must hold a complete Alignment. Got {str(path)!r}, where something is amiss "
                f"({type(error).__name__}: {error})."
            ) from error

    def __repr__(self) -> str:
        head = f"Alignment by {self.method}: relative distance {self.before:.3g} -> {self.after:.3g}"
        if len(self.kinds) < len(KINDS):
            head += f" ({', '.join(self.kinds)} only)"
        table = [("space", "units", "group", "moved", "cosine", "worst")]
        for row in self._rows():
            table.append((
                row["space"], str(row["units"]), row["group"], str(row["moved"]),
                f"{row['cosine']:.3f}", f"{row['worst']:.3f}",
            ))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
        return "\n".join([head, *lines, *(f"Note: {note}" for note in self.notes)])


def _to_lists(x: Tensor) -> dict[str, Any]:
    values = [None if v != v else v for v in x.flatten().tolist()]
    return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch."), "values": values}


def _from_lists(data: dict[str, Any]) -> Tensor:
    values = [float("nan") if v is None else v for v in data["values"]]
    return torch.tensor(values, dtype=getattr(torch, data["dtype"])).reshape(data["shape"])
