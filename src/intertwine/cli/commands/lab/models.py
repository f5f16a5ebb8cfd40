"""``intertwine models``: the built-in networks."""

from dataclasses import dataclass

from ..._options import Options


@dataclass(frozen=True)
class ModelsOptions(Options):
    """List the built-in networks with their parameter counts.

    Example:
      intertwine models
      intertwine models --json
    """

    as_json: bool = False
