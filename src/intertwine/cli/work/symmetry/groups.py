"""Work of ``intertwine groups``."""

from collections.abc import Callable
from typing import Any

from .... import groups as library
from ...commands.symmetry.groups import GroupsOptions
from ...inputs.models import call_factory
from ...outputs.show import print_json, print_table


def run(asked: GroupsOptions) -> None:
    """Show the intertwiner groups of activations: the matrices A with sigma(A x) = phi(A) sigma(x)."""
    if asked.activations:
        rows = [_row(name, asked.dim) for name in asked.activations]
    else:
        rows = [{**row._asdict(), **_size(library.intertwiner(row.activation), asked.dim)} for row in library.table()]
    if asked.as_json:
        print_json(rows)
        return
    columns = list(rows[0])
    print_table(columns, [[row[column] for column in columns] for row in rows])


def _row(name: str, dim: int | None) -> dict[str, Any]:
    found = library.intertwiner(_activation(name))
    if isinstance(found, library.GatedIntertwiner):
        words, phi, note = (*library.table((name,))[0][1:3], "")
        margin = found.gate.margin
    else:
        words, phi = found.homogeneity.group(2).words, found.homogeneity.phi_words
        margin, note = found.margin, found.note
    # residual and margin as text: they range over many orders of magnitude
    measured = {"residual": f"{found.residual:.1e}", "margin": f"{margin:.1e}"} if found.how == "measured" else {}
    measured = measured or {"residual": "", "margin": ""}
    return {
        "activation": name,
        "group": words,
        "phi": phi,
        "how": found.how,
        **measured,
        "note": note,
        **_size(found, dim),
    }


def _activation(name: str) -> str | Callable[..., Any]:
    """A known name stays text; ``module:function`` is imported."""
    if name.partition(":")[0] in library.activation_names() or ":" not in name:
        return name
    return call_factory(name, "activation")


def _size(found: Any, dim: int | None) -> dict[str, Any]:
    if dim is None:
        return {}
    group = found.group_for(dim)
    return {f"on {dim} channels": repr(group), "dimension": group.dim}
