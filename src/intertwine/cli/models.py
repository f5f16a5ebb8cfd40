"""``intertwine models``: the built-in networks."""

from ._options import Json
from ._show import say

__all__ = ["models"]


def models(as_json: Json = False) -> None:
    """List the built-in networks with their parameter counts.

    Example:
      intertwine models
      intertwine models --json
    """
    from ..lab import networks
    from ._show import print_json, print_table

    found = networks.describe()
    if as_json:
        keys = ("name", "parameters", "arguments", "source")
        print_json([{**{key: getattr(n, key) for key in keys}, "input": n.input_shape} for n in found])
        return
    rows = []
    for n in found:
        arguments = ", ".join(f"{key}={_shown(value)}" for key, value in n.arguments.items())
        rows.append([n.name, n.parameters, " x ".join(map(str, n.input_shape)), arguments, n.source])
    print_table(["model", "parameters", "input", "arguments and defaults", "source"], rows)
    say("Arguments follow the name: myrtle_cnn:width=512,bn=false")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
