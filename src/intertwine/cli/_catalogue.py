"""Catalogue of all names that commands take, kept in a file that loads in milliseconds without the owning modules.

``python -m intertwine.cli._catalogue`` rewrites it; a test checks that it agrees with the registries.
"""

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

FILE = Path(__file__).with_name("catalogue.json")

_ONES = {"input": "ones"}
# Gated version -> its name in the paper, where its gates come from, the input of its value network, and how it is
# built: its kind and arguments.
VERSIONS: dict[str, tuple[str, str, str, str, dict[str, str]]] = {
    "dgn": ("DGN(x, x)", "learnt beside the weights", "x", "dgn", {}),
    "dgn-ones": ("DGN(x, 1)", "learnt beside the weights", "1", "dgn", _ONES),
    "dgn-fr": ("DGN-FR", "of a random network, fixed", "x", "dgn", {"regime": "fixed_random"}),
    "dgn-fl": ("DGN-FL", "of the trained network, fixed", "x", "dgn", {"regime": "fixed_learnt"}),
    "dlgn": ("DLGN(x, x)", "of a linear network", "x", "dlgn", {}),
    "dlgn-ones": ("DLGN(x, 1)", "of a linear network", "1", "dlgn", _ONES),
    "dlgn-sf": ("DLGN-SF(x, x)", "of one linear map each", "x", "dlgn_sf", {}),
    "dlgn-sf-ones": ("DLGN-SF(x, 1)", "of one linear map each", "1", "dlgn_sf", _ONES),
}


@cache
def catalogue() -> dict[str, Any]:
    """Names by kind; built-in networks come with their facts.

    Examples:
        >>> catalogue()["models"]["mlp"]["input"]
        [1, 8, 8]
    """
    return json.loads(FILE.read_text())


def gathered() -> dict[str, Any]:
    """Names by kind, gathered from the registries themselves."""
    from .. import exchange, groups, matching, similarity, stitching
    from ..groups.intertwiners import GATED_UNITS
    from ..lab import data, experiments, networks, training
    from ..lab.data.concepts import CONCEPT_FORMS
    from ..symmetry.transformation import KINDS

    models = {
        n.name: {
            "parameters": n.parameters, "input": list(n.input_shape),
            "arguments": {key: list(v) if isinstance(v, tuple) else v for key, v in n.arguments.items()},
            "source": n.source,
        }
        for n in networks.NETWORKS.values()
    }  # fmt: skip
    return {
        "models": models,
        "measures": list(similarity.measure_names()),
        "concepts": list(CONCEPT_FORMS),
        "formats": list(exchange.FORMATS),
        "gated": list(VERSIONS),
        "families": list(dict.fromkeys([*stitching.families(), *groups.names()])),
        "kinds": list(KINDS),
        "methods": {name: _options_of(solver) for name, solver in matching.METHODS.items()},
        "data": list(data.FORMS),
        "recipes": list(training.RECIPES),
        "experiments": list(experiments.experiments()),
        "activations": [*groups.activation_names(), *GATED_UNITS],
    }


def _options_of(solver: Any) -> dict[str, str]:
    """Kind of value, number (or boolean) or text, of each solver option that the command line can set."""
    hints = get_type_hints(type(solver))
    kinds = {
        f.name: {*get_args(hint)} if isinstance(hint := hints[f.name], UnionType) else {hint} for f in fields(solver)
    }
    return {k: "text" if str in some else "number" for k, some in kinds.items() if some & {bool, int, float, str}}


if __name__ == "__main__":
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in gathered().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
