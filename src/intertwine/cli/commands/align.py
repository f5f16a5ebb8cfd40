"""``intertwine align``: one checkpoint brought into the basis of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._options import DeviceOptions, ExampleOptions, advanced, option
from .._outputs import claim_folder, keep_beside, print_json, say, tell_written, write_network
from . import inputs, iw, looks_at_data, solver_of

_WRITTEN = ("alignment.safetensors", "results.json", "report.html", "moved", "moved.safetensors", "moved.json",
            "base", "base.safetensors", "base.json")  # fmt: skip


class Align(DeviceOptions, ExampleOptions):
    """Bring checkpoint B into the basis of checkpoint A: new weights, the same function.

    Units are permuted, rescaled, flipped and rotated as far as the architecture allows, so that B lies as close to A as
    the method can bring it. No model needs a list of layers. Writes the moved B, the alignment and a page. If both
    networks had to be folded first, it also writes the base: the folded A that the moved B is aligned to.
    If the widths differ, first bring B to A's widths with 'intertwine transport'.
    With --sharded, only one tensor of each checkpoint is in memory at a time, units are only permuted and flipped, and
    the moved B is written in shards.

    Example:
      intertwine align a.safetensors b.safetensors --model resnet20
      intertwine align a.safetensors b.safetensors --method activations --data digits
      intertwine align gpt_a gpt_b
      intertwine align a.safetensors b.safetensors --model my_code.py:network --input-shape 2,16 --tokens 50257
      intertwine align llama_a llama_b --sharded
    """

    python = "iw.align(a, b, example_inputs).apply(b)"
    methods = ()

    a: Path
    b: Path
    model_b: str | None = None
    method: str = option(
        "weights, activations, mixed, frank-wolfe, sinkhorn, straight-through or learned. Options follow a colon: "
        "sinkhorn:steps=300,temperature=0.05. learned:checkpoint=FILE.safetensors resumes an interrupted search.",
        "weights",
    )
    kinds: list[str] | None = advanced(
        "Search only these kinds, joined by commas: permutation, scale, sign, linear.", metavar="KINDS"
    )
    examples: int = 5000
    batch_size: int = 250
    sharded: bool = False
    out: Path = option("Folder for the moved network, the alignment and report.html.", Path("alignment"), metavar="DIR")

    def __call__(self) -> None:
        claim_folder(self.out, _WRITTEN, self.reads)
        said, files = self._part_by_part() if self.sharded else self._in_memory()
        if self.as_json:
            return print_json({**said, "files": files})
        say(said["text"])
        return tell_written(files)

    def _in_memory(self) -> tuple[dict[str, Any], dict[str, Path]]:
        """Align networks in memory, on data if the method uses data."""
        group = inputs.open_group(self.reads, self, "always" if looks_at_data(self.method) else "if given")
        loader = group.loader("train", self.examples, self.batch_size) if group.data is not None else None
        one, other = group.models
        how: Any = {"method": solver_of(self.method), "loader": loader, "seed": self.seed, "kinds": self.kinds}
        found = iw.align(one, other, group.example, **how)
        said, files = _written(found, self.out)
        a, b = group.names
        card = group.card({"aligned": b, "to": a, "method": self.method, "command": self.line})
        networks = {"moved": (found.apply(other), self.b, group.checkpoints[1])}
        if found.gauge is not None:  # B meets A there, folded
            networks["base"] = (found.a, self.a, group.checkpoints[0])
        for name, (model, origin, checkpoint) in networks.items():
            # a folder if it was read from one, a file otherwise
            place = self.out / (name if checkpoint.tensors is None else f"{name}.safetensors")
            files[name] = write_network(model, place, card, origin)
        return said, files

    def _part_by_part(self) -> tuple[dict[str, Any], dict[str, Path]]:
        """Align tensor by tensor, never holding a whole network; the model is built without weights."""
        if self.method != "weights":
            raise ValueError(f"--method must be weights for --sharded. Got {self.method!r}.")
        (a, b, sym), place = inputs.stored(self), self.out / "moved"
        found = iw.align(a, b, None, seed=self.seed, kinds=self.kinds, sym=sym)
        (place / "model.safetensors").unlink(missing_ok=True)  # of an earlier run: readers would take it first
        iw.symmetry.write_shards(place, found.apply(b))
        said, files = _written(found, self.out)
        return said, {**files, "moved": keep_beside(inputs.directory_of(self.b, self.model) or self.b, place)}


def _written(found: iw.Alignment, out: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    files = {
        "alignment": found.save(out / "alignment.safetensors"),
        "results": found.save(out / "results.json"),
        "report": found.to_html(out / "report.html"),
    }
    said = {key: getattr(found, key) for key in ("method", "objective", "before", "after", "notes")}
    return {"text": str(found), **said, "spaces": found.to_frame().to_dict("records")}, files
