"""``intertwine mappings``: what quantisers, pruners and mergers need of a model's symmetry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._options import NetworkOptions, option
from .._outputs import claim_file, show, write_one
from . import inputs


@dataclass(frozen=True)
class MappingsOptions(NetworkOptions):
    """Write the symmetries of a model as another tool takes them, each entry verified numerically.

    Prints every mapping as patterns of module names with its proof, and for what is not listed the reason. A model
    without weights, or too large, is proved on a small one of its class.

    Example:
      intertwine mappings hf:DIRECTORY --format llm-compressor --meta --out recipe.yaml
      intertwine mappings mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out page.html
    """

    suffixes = (".yaml", ".yml", ".py", ".json", ".html", ".htm")

    format: str = option(
        "llm-compressor",
        "The tool: llm-compressor, model-optimizer, spinquant, quarot, torch-pruning, perm-spec or graph.",
    )
    out: Path | None = option(None, "Write for the tool (.yaml, .py, .json), or the page (.html).", metavar="FILE")


def run(asked: MappingsOptions) -> None:
    """Write the symmetries of a model as another tool takes them."""
    spec = inputs.model_of(asked.network, asked.model)
    claim_file(asked.out)
    _network, sym = inputs.model_and_symmetry(spec, asked, asked.meta)
    found = sym.mappings(asked.format)
    write_one(found, asked.out, found.write)
    show(found, asked.as_json)
