"""``intertwine convert``: the weights of one network in the code of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._options import ExampleOptions, option
from .._outputs import claim_folder, keep_beside, largest_shard, print_json, say, tell_written
from . import inputs, iw

_WRITTEN = ("converted", "converted.safetensors", "converted.json", "correspondence.json")


@dataclass(frozen=True)
class ConvertOptions(ExampleOptions):
    """Write B's weights under A's names and in A's shapes, for A's code.

    Proved before anything is written: A with these weights computes B's function, in float64. Written as A is: a
    Hugging Face directory with its configuration untouched, or a safetensors file. Refuses where nothing corresponds,
    and where A reads weights that B has not.

    Example:
      intertwine convert b.safetensors --like hf:one_directory --model mypackage.nets:decoder --out converted
    """

    b: Path
    like: Path = option(..., "A: a checkpoint or directory in whose code the weights shall be.", metavar="A")
    out: Path = option(..., "Folder to write.", metavar="DIR")
    model: str | None = None
    model_like: str | None = option(
        None, "Model of A, where neither a card nor its directory says it.", metavar="MODEL"
    )
    device: str = "cpu"


def run(asked: ConvertOptions) -> None:
    """Write B's weights in A's code, once A with them was seen to compute B's function."""
    from ...matching.correspondence.correspond import in_code_of

    claim_folder(asked.out, _WRITTEN, [asked.like, asked.b])
    group = inputs.open_group([asked.like, asked.b], asked, "if given", (asked.model_like, asked.model))
    a, b = group.models
    found = iw.correspond(a, b, group.example)
    _check_whole(found)
    place = asked.out / ("converted" if group.checkpoints[0].tensors is None else "converted.safetensors")
    card = group.card({"converted": group.names[1], "like": group.names[0], "command": asked.line})
    written = iw.merging.export(in_code_of(a, b, found), place, card, largest_shard(asked.like))
    files = {
        "converted": keep_beside(asked.like, written),
        "correspondence": found.save(asked.out / "correspondence.json"),
    }
    if asked.as_json:
        print_json({"verdict": found.verdict, "error": found.error, "files": files})
        return
    say(found.headline)
    tell_written(files)


def _check_whole(found: iw.Correspondence) -> None:
    """Refuse what was not proved, and what leaves tensors of A empty."""
    if not found.proved:
        raise ValueError(
            f"B must correspond to A for its weights to be carried over. Got {found.verdict}: {found.reason}."
        )
    if found.unread:
        missing = ", ".join(found.unread[:4])
        raise ValueError(
            f"B must hold all that A reads. Got nothing for {missing} of A: B is part of it, or A has more."
        )
