"""``intertwine fold``: the same network in an interpretable gauge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._options import advanced, option
from . import Rewriting, inputs, iw, torch


@dataclass(frozen=True, kw_only=True)
class Fold(Rewriting):
    """Write the same network with gains of one, biases pushed on, and weights without what a norm's mean removes.

    Norms' gains and biases go into the linear maps that read them, biases of values through attention into the bias
    after it, and what is written to layer norms is centred. Prints what was changed, what stays and why, and the
    numerical proof. The network is kept exactly: compare it with 'intertwine diff'.

    Example:
      intertwine fold hf:gpt2 --out folded.safetensors
      intertwine fold hf:llama --out folded
      intertwine fold a.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out b.safetensors
    """

    model: str | None = None
    norms: bool = option(True, "Fold the gains of norms.")
    center: bool = option(True, "Centre what is written to layer norms.")
    biases: bool = option(True, "Fold biases of norms, and push biases of values on.")
    extend: bool = option(True, "Untie weights, and add biases where there are none, as needed.")
    strict: bool = advanced(False, "Fail unless everything can be folded.")

    def rewrite(self, group: inputs.Group) -> tuple[torch.nn.Module, Any, dict[str, Any]]:
        """The folded network."""
        steps = (self.norms, self.center, self.biases)
        folded = iw.fold(group.models[0], group.example, *steps, extend=self.extend, strict=self.strict)
        biases = [name for name in folded.added if name.endswith(".bias")]
        if biases and self.out.suffix != ".safetensors":
            raise ValueError(
                "--out must end in .safetensors for this model: folding adds biases that its class does not have, such "
                f"as {', '.join(biases[:3])}. Got the folder {str(self.out)!r}. Or say --no-extend, which adds none."
            )
        return folded.model, folded, {"folded": group.names, "added": list(folded.added)}
