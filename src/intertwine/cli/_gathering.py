"""Catalogue of names gathered from the registries themselves: ``python -m intertwine.cli._gathering`` keeps it."""

import json
from typing import Any

from .. import exchange, groups, matching, similarity, stitching
from ..groups.activations.intertwiners import GATED_UNITS
from ..lab import data, experiments, networks, training
from ..lab.data.concepts import CONCEPT_FORMS
from ..lab.training.engines.engine import ENGINES
from ..symmetry.transformation import KINDS
from ._catalogue import FILE
from ._solvers import options_of
from .commands.gates import VERSIONS


def gathered() -> dict[str, Any]:
    """Names by what they are names of, as ``catalogue`` reads them."""
    models = {
        n.name: {
            "parameters": n.parameters,
            "input": list(n.input_shape),
            "arguments": {
                key: list(value) if isinstance(value, tuple) else value for key, value in n.arguments.items()
            },
            "source": n.source,
        }
        for n in networks.describe()
    }
    return {
        "models": models,
        "measures": list(similarity.measure_names()),
        "concepts": list(CONCEPT_FORMS),
        "engines": ["auto", *ENGINES],
        "formats": list(exchange.FORMATS),
        "gated": list(VERSIONS),
        "families": list(dict.fromkeys([*stitching.families(), *groups.names()])),
        "kinds": list(KINDS),
        "methods": {name: options_of(solver) for name, solver in matching.METHODS.items()},
        "data": list(data.FORMS),
        "recipes": list(training.RECIPES),
        "experiments": list(experiments.experiments()),
        "activations": [*groups.activation_names(), *GATED_UNITS],
    }


if __name__ == "__main__":
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in gathered().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
