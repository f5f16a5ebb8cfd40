"""Work of ``intertwine models``."""

from __future__ import annotations

from ....lab import networks
from ..._show import print_json, print_table, say
from ...commands.lab.models import ModelsOptions

__all__ = ["run"]


def run(asked: ModelsOptions) -> None:
    """List the built-in networks with their parameter counts."""
    found = networks.describe()
    if asked.as_json:
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
