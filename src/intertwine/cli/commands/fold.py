"""``intertwine fold``: the same network in an interpretable gauge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._options import ExampleOptions, advanced, option
from .._outputs import claim, keep_beside, largest_shard, print_json, say, tell
from . import inputs, iw


@dataclass(frozen=True)
class FoldOptions(ExampleOptions):
    """Write the same network with gains of one, biases pushed on, and weights without what a norm's mean removes.

    Norms' gains and biases go into the linear maps that read them, biases of values through attention into the bias
    after it, and what is written to layer norms is centred. Prints what was changed, what stays and why, and the
    numerical proof. The network is kept exactly: compare it with 'intertwine diff'.

    Example:
      intertwine fold hf:gpt2 --out folded.safetensors
      intertwine fold hf:llama --out folded
      intertwine fold a.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out b.safetensors
    """

    suffixes = (".safetensors", "")

    a: Path
    out: Path = option(..., "FILE.safetensors, or a folder for a model of transformers.", metavar="PATH")
    model: str | None = None
    norms: bool = option(True, "Fold the gains of norms.")
    center: bool = option(True, "Centre what is written to layer norms.")
    biases: bool = option(True, "Fold biases of norms, and push biases of values on.")
    extend: bool = option(True, "Untie weights, and add biases where there are none, as needed.")
    strict: bool = advanced(False, "Fail unless everything can be folded.")


def run(asked: FoldOptions) -> None:
    """Write the same network in an interpretable gauge."""
    claim(asked.out, [asked.a])
    group = inputs.open_group([asked.a], asked, "if given")
    steps = (asked.norms, asked.center, asked.biases)
    folded = iw.fold(group.models[0], group.example, *steps, extend=asked.extend, strict=asked.strict)
    biases = [name for name in folded.added if name.endswith(".bias")]
    if biases and asked.out.suffix != ".safetensors":
        raise ValueError(
            "--out must end in .safetensors for this model: folding adds biases that its class does not have, such as "
            f"{', '.join(biases[:3])}. Got the folder {str(asked.out)!r}. Or say --no-extend, which adds none."
        )
    card = group.card({"folded": group.names, "added": list(folded.added), "command": asked.line})
    written = keep_beside(asked.a, iw.merging.export(folded.model, asked.out, card, largest_shard(asked.a)))
    if asked.as_json:
        print_json({**folded.to_dict(), "written": written})
    else:
        say(folded.summary())
    tell(f"wrote {written}")
