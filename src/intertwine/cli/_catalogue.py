"""Catalogue of all names that commands take, kept as a file: read in milliseconds, without the modules that own them.

``python -m intertwine.cli._catalogue`` writes it anew; a test holds it to the registries.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("catalogue.json")


@cache
def catalogue() -> dict[str, Any]:
    """Names by what they are names of; built-in networks with their facts.

    Examples:
        >>> catalogue()["models"]["mlp"]["input"]
        [1, 8, 8]
    """
    return json.loads(_FILE.read_text())


def gathered() -> dict[str, Any]:
    """The same from the registries themselves."""
    from .. import exchange, groups, matching, similarity, stitching
    from ..lab import data, experiments, networks, training
    from ._gated_versions import VERSIONS

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
        "formats": list(exchange.FORMATS),
        "gated": list(VERSIONS),
        "families": list(stitching.families()),
        "methods": list(matching.METHODS),
        "data": list(data.FORMS),
        "recipes": list(training.RECIPES),
        "experiments": list(experiments.experiments()),
        "activations": list(groups.activation_names()),
    }


if __name__ == "__main__":
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in gathered().items()]
    _FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
