"""``intertwine correspond`` and ``convert``: which entries of one network are which of another, and carried over."""

from __future__ import annotations

from pathlib import Path

from .._options import ExampleOptions, option
from .._outputs import claim, claim_file, print_json, say, tell_written, write_network
from . import Finding, inputs, iw


class Correspond(Finding, ExampleOptions):
    """Find which parameter entries of B are which of A, whatever the code of each calls and packs them.

    The programs are compared, not names: packed projections, transposed weights and wrappers are seen through, and one
    network may be part of the other. What is found is proved: A with B's weights computes B's function, in float64.
    Where nothing corresponds, the first place where the programs part is named; the exit code is 0.

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
    """Write B's weights under A's names and in A's shapes, for A's code.

    Proved before anything is written: A with these weights computes B's function, in float64. A folder has the
    configuration of A untouched; which entries are which is written beside it, as OUT.correspondence.json. Refuses
    where nothing corresponds, and where A has weights that B has not.

    Example:
      intertwine convert b.safetensors --like hf:one_directory --model mypackage.nets:decoder --out b
    """

    python = "iw.correspond(a, b, example_inputs).convert(b.state_dict())"
    suffixes = (".safetensors", "")

    b: Path
    like: Path = option("A: a checkpoint or directory in whose code the weights shall be.", ..., metavar="A")
    out: Path = option("FILE.safetensors, or a folder for a model of transformers.", ..., metavar="PATH")
    model_like: str | None = option("Model of A, where neither a card nor its directory says it.", metavar="MODEL")
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
