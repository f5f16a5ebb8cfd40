"""``intertwine models``, ``groups`` and ``report``: built-in networks, groups of activations, and saved results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._words import written
from .._catalogue import catalogue
from .._options import Options, argument, option
from .._outputs import claim_file, print_json, print_table, say
from . import inputs, iw


class Models(Options):
    """List the built-in networks with their parameter counts.

    Example:
      intertwine models
      intertwine models --json
    """

    python = "iw.lab.networks.NETWORKS"

    def __call__(self) -> None:
        found = catalogue()["models"]
        if self.as_json:
            return print_json([{"name": name, **facts} for name, facts in found.items()])
        rows = [
            {"model": name, "parameters": n["parameters"], "input": " x ".join(map(str, n["input"])),
             "arguments and defaults": ", ".join(f"{key}={written(value)}" for key, value in n["arguments"].items()),
             "source": n["source"]}
            for name, n in found.items()
        ]  # fmt: skip
        print_table(rows)
        return say("Arguments follow the name: myrtle_cnn:width=512,bn=false")


class Groups(Options):
    """Show the intertwiner groups of activations: the matrices A with sigma(A x) = phi(A) sigma(x).

    Without names, shows the table of all known activations. A function of your own is measured in float64: the residual
    says how well the accepted laws hold, the margin how clearly the others fail.

    Example:
      intertwine groups
      intertwine groups relu gelu leaky_relu:0.1 --dim 64
      intertwine groups mypackage.activations:my_sigma
    """

    python = 'iw.intertwiner("relu"); iw.groups.table()'

    activations: list[str] | None = argument(
        "Name (relu, leaky_relu:0.1, swiglu) or module:function of any scalar function.", metavar="ACTIVATION"
    )
    dim: int | None = option("Number of channels, to show the group's dimension.", min=1)

    def __call__(self) -> None:
        if self.activations:
            rows = [_row(name, self.dim) for name in self.activations]
        else:
            known = iw.groups.table()
            rows = [{**row._asdict(), **_size(iw.intertwiner(row.activation), self.dim)} for row in known]
        return print_json(rows) if self.as_json else print_table(rows)


def _row(name: str, dim: int | None) -> dict[str, Any]:
    mine = ":" in name and name.partition(":")[0] not in iw.groups.activation_names()
    found = iw.intertwiner(inputs.call_factory(name, "activation") if mine else name)
    if isinstance(found, iw.groups.GatedIntertwiner):
        words, phi, note = (*iw.groups.table((name,))[0][1:3], "")
        margin = found.gate.margin
    else:
        words, phi = found.homogeneity.group(2).words, found.homogeneity.phi_words
        margin, note = found.margin, found.note
    # residual and margin as text: they range over many orders of magnitude
    told = [f"{value:.1e}" if found.how == "measured" else "" for value in (found.residual, margin)]
    facts = {"activation": name, "group": words, "phi": phi, "how": found.how, "residual": told[0], "margin": told[1]}
    return {**facts, "note": note, **_size(found, dim)}


def _size(found: Any, dim: int | None) -> dict[str, Any]:
    if dim is None:
        return {}
    group = found.group_for(dim)
    return {f"on {dim} channels": repr(group), "dimension": group.dim}


class Report(Options):
    """Rebuild the report page from saved results.

    Example:
      intertwine report comparison/results.json --out page.html
    """

    python = 'iw.report.write_page(iw.report.load_result("results.json"), "page.html")'
    suffixes = (".html", ".htm")

    results: Path = argument("Results that a command or save() wrote: .json or .safetensors.", ..., metavar="RESULTS")
    out: Path | None = option("File for the page. Default: beside the results.", metavar="FILE")

    def __call__(self) -> None:
        result = iw.report.load_result(self.results)
        place = self.out or self.results.with_suffix(".html")
        claim_file(place, [self.results])
        try:
            path = iw.report.write_page(result, place)
        except OSError:
            raise
        except Exception as error:  # parts that were changed may not fit each other anywhere
            raise ValueError(
                f"results must be a complete {type(result).__name__}. Got {str(self.results)!r}, of which no page can "
                f"be made ({type(error).__name__}: {error})."
            ) from error
        print_json({"page": path}) if self.as_json else say(f"wrote {path}")
