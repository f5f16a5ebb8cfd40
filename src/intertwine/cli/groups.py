"""``intertwine groups``: what activations let through."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ._options import Json

__all__ = ["groups"]


def groups(
    activations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ACTIVATION", help="Name (relu, leaky_relu:0.1, swiglu) or module:function of any scalar function."
        ),
    ] = None,
    dim: Annotated[
        int | None, typer.Option("--dim", min=1, help="Number of channels, to see the group's dimension.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the intertwiner groups of activations: the matrices A with sigma(A x) = phi(A) sigma(x).

    Without names, the table of all known activations. A function of your own is measured in float64; the residual says
    how well the laws hold that were accepted, the margin how clearly the others fail.

    Example:
      intertwine groups
      intertwine groups relu gelu leaky_relu:0.1 --dim 64
      intertwine groups mypackage.activations:my_sigma
    """
    from .. import groups as library
    from ._show import print_json, print_table

    if activations:
        rows = [_row(name, dim) for name in activations]
    else:
        rows = [{**row._asdict(), **_size(library.intertwiner(row.activation), dim)} for row in library.table()]
    if as_json:
        print_json(rows)
        return
    columns = list(rows[0])
    print_table(columns, [[row[column] for column in columns] for row in rows])


def _row(name: str, dim: int | None) -> dict[str, Any]:
    from .. import groups as library

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
    from .. import groups as library
    from ._models import call_factory

    if name.partition(":")[0] in library.activation_names() or ":" not in name:
        return name
    return call_factory(name, "activation")


def _size(found: Any, dim: int | None) -> dict[str, Any]:
    if dim is None:
        return {}
    group = found.group_for(dim)
    return {f"on {dim} channels": repr(group), "dimension": group.dim}
