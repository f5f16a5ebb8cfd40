"""``intertwine models``: the built-in networks."""

from __future__ import annotations

from dataclasses import dataclass

from .._catalogue import catalogue
from .._options import Options
from .._outputs import print_json, print_table, say


@dataclass(frozen=True)
class ModelsOptions(Options):
    """List the built-in networks with their parameter counts.

    Example:
      intertwine models
      intertwine models --json
    """


def run(asked: ModelsOptions) -> None:
    """List the built-in networks with their parameter counts."""
    found = catalogue()["models"]
    if asked.as_json:
        print_json([{"name": name, **facts} for name, facts in found.items()])
        return
    rows = []
    for name, n in found.items():
        arguments = ", ".join(f"{key}={_shown(value)}" for key, value in n["arguments"].items())
        rows.append([name, n["parameters"], " x ".join(map(str, n["input"])), arguments, n["source"]])
    print_table(["model", "parameters", "input", "arguments and defaults", "source"], rows)
    say("Arguments follow the name: myrtle_cnn:width=512,bn=false")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
