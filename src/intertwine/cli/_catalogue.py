"""Catalogue of all names that commands take, kept as a file: read in milliseconds, without the modules that own them.

``python -m intertwine.cli._gathering`` writes it anew; a test holds it to the registries.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalogue.json")


@cache
def catalogue() -> dict[str, Any]:
    """Names by what they are names of; built-in networks with their facts.

    Examples:
        >>> catalogue()["models"]["mlp"]["input"]
        [1, 8, 8]
    """
    return json.loads(FILE.read_text())
