"""``intertwine mappings``: what quantisers, pruners and mergers need of a model's symmetry."""

from dataclasses import dataclass
from pathlib import Path

from ..._options import NetworkOptions, option


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
    as_json: bool = False
