"""Work of ``intertwine models``: it imports nothing heavy."""

from ..._catalogue import catalogue
from ...commands.lab.models import ModelsOptions
from ...outputs.show import print_json, print_table, say


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
