"""``intertwine correspond`` and ``convert``: which entries of two networks correspond, and how to carry them over."""

from __future__ import annotations

from pathlib import Path

from .._options import ExampleOptions, option
from .._outputs import claim, claim_file, print_json, say, tell_written, write_network
from . import Finding, inputs, iw


class Correspond(Finding, ExampleOptions):
    """Find which parameter entries of B correspond to which of A, however each model names and packs them.

    The programs are compared, not the names: packed projections, transposed weights and wrappers make no difference,
    and one network may be part of the other. The result is proved: A with B's weights computes B's function in float64.
    If nothing corresponds, the first place where the programs differ is named. The exit code is 0 either way.

    Example:
      intertwine correspond hf:one_directory b.safetensors --model-b mypackage.nets:decoder
      intertwine correspond a.safetensors b.safetensors --model resnet20 --model-b mypackage.nets:resnet --out page.html
    """

    python = "iw.correspond(a, b, example_inputs)"

    a: Path
    b: Path
    model_b: str | None = None
    device: str = "cpu"

    def find(self) -> iw.Correspondence:
        group = inputs.open_group(self.reads, self, "if given")
        a, b = group.models
        return iw.correspond(a, b, group.example)


class Convert(ExampleOptions):
    """Convert B's weights to A's names and shapes, so that A's code can load them.

    Before anything is written, it is proved that A with these weights computes B's function in float64. A folder gets
    A's configuration unchanged. OUT.correspondence.json, beside it, lists which entries correspond. The command fails
    if nothing corresponds, or if A has weights that B lacks.

    Example:
      intertwine convert b.safetensors --like hf:one_directory --model mypackage.nets:decoder --out b
    """

    python = "iw.correspond(a, b, example_inputs).convert(b.state_dict())"
    suffixes = (".safetensors", "")

    b: Path
    like: Path = option("A: a checkpoint or directory whose code is to load the weights.", ..., metavar="A")
    out: Path = option("FILE.safetensors, or a folder for a model of transformers.", ..., metavar="PATH")
    model_like: str | None = option("Model of A, if neither a card nor its directory names it.", metavar="MODEL")
    device: str = "cpu"

    def __call__(self) -> None:
        from ...matching.correspondence.correspond import by_name, in_code_of

        correspondence = self.out.with_suffix(".correspondence.json")
        claim(self.out, self.reads)
        claim_file(correspondence, self.reads)
        group = inputs.open_group([self.like, self.b], self, "if given", (self.model_like, self.model))
        a, b = group.models
        found = iw.correspond(a, b, group.example)
        if not found.proved:
            raise ValueError(
                f"B must correspond to A for its weights to be carried over. Got {found.verdict}: {found.reason}."
            )
        held = by_name(a, b, found.unread)
        if missing := [name for name in found.unread if name not in held]:
            raise ValueError(
                f"B must hold all that A has. Got nothing for {', '.join(missing[:4])} of A: B is part of it, or A "
                "reads it on no example that was given, so that nothing says which of B's it is."
            )
        card = group.card({"converted": group.names[1], "like": group.names[0], "command": self.line})
        written = write_network(in_code_of(a, b, found), self.out, card, self.like)
        files = {"converted": written, "correspondence": found.save(correspondence)}
        if self.as_json:
            return print_json({"verdict": found.verdict, "error": found.error, "files": files})
        say(found.headline)
        return tell_written(files)
