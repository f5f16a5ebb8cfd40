"""``intertwine symmetries``, ``mappings`` and ``fingerprint``: an architecture's group, and what is invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._words import near
from .._options import ExampleOptions, NetworkOptions, option
from .._outputs import print_json, say
from . import Finding, inputs, iw


class Symmetries(Finding, NetworkOptions):
    """Find the weight-space symmetries of an architecture, and say what restricts them.

    Prints one line for every hidden space: its size, its group, the generators of scales and signs, and which operation
    breaks the rest. The page shows where in the network each space lives. No weights are needed.

    Example:
      intertwine symmetries resnet20 --out resnet20.html
      intertwine symmetries mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --meta
      intertwine symmetries resnet20 --explain layer1.0.conv1.weight
    """

    python = "iw.symmetries(model, example_inputs)"

    explain: str | None = option("Explain why each axis of this parameter moves or stays.", metavar="NAME")

    def find(self) -> iw.Symmetry:
        return inputs.model_and_symmetry(inputs.model_of(self), self, self.meta)[1]

    def plain(self, found: iw.Symmetry) -> Any:
        if self.explain is not None:
            return self._lines(found, self.explain)
        return {**super().plain(found), "dim": found.dim, "log_size": found.log_size}

    def words(self, found: iw.Symmetry) -> str:
        return super().words(found) if self.explain is None else "\n".join(self._lines(found, self.explain))

    def _lines(self, found: iw.Symmetry, asked: str) -> list[str]:
        """Reasons why each axis of one parameter moves or stays."""
        name = found.aliases.get(asked, asked)
        if name not in found.layouts:
            close = near(name, (*found.layouts, *found.aliases)) or f" There are {', '.join([*found.layouts][:6])}, ..."
            raise ValueError(f"--explain must name a parameter. Got {asked!r}.{close}")
        return [found.explain(asked, i) for i in range(len(found.layouts[name].axes))]


class Mappings(Finding, NetworkOptions):
    """Write the symmetries of a model in the format of another tool, each entry verified numerically.

    Prints every mapping as patterns of module names with its proof, and the reason for whatever is not listed. A model
    without weights, or one that is too large, is proved on a small model of its class.

    Example:
      intertwine mappings hf:DIRECTORY --format llm-compressor --meta --out recipe.yaml
      intertwine mappings mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out page.html
    """

    python = 'iw.symmetries(model, example_inputs).mappings("llm-compressor").write("recipe.yaml")'
    suffixes = (".yaml", ".yml", ".py", ".json", ".html", ".htm")

    format: str = option(
        "The tool: llm-compressor, model-optimizer, spinquant, quarot, torch-pruning, perm-spec or graph.",
        "llm-compressor",
    )
    out: Path | None = option("Write for the tool (.yaml, .py, .json), or the page (.html).", metavar="FILE")

    def find(self) -> iw.exchange.Mappings:
        _network, sym = inputs.model_and_symmetry(inputs.model_of(self), self, self.meta)
        found: iw.exchange.Mappings = sym.mappings(self.format)  # type: ignore[assignment]
        return found


class Fingerprint(ExampleOptions):
    """Print a short string that is equal for symmetric copies of a network and different for other weights.

    It begins with the architecture, as far as tensors show it: settings such as rope_theta are not in it. The string of
    a copy differs if its stream was rotated (as by 'intertwine rotate'), folded or not; if its norm biases were folded,
    until both are folded; and perhaps if it was rounded. To decide, use 'intertwine same'.

    Example:
      intertwine fingerprint a.safetensors
      intertwine fingerprint hf:one_directory
    """

    python = "iw.fingerprint(model, example_inputs)"

    a: Path

    def __call__(self) -> None:
        group = inputs.open_group([self.a], self, "if given")
        found = iw.fingerprint(group.models[0], group.example)
        print_json({"fingerprint": found}) if self.as_json else say(found)
