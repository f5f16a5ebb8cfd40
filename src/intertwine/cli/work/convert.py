"""Work of ``intertwine convert``."""

from ...matching.correspondence.correspond import in_code_of
from ...merging import export
from ..commands.convert import ConvertOptions
from ..inputs.pairs import card_of
from ..outputs.files import claim_folder, keep_beside, largest_shard
from ..outputs.results import tell_written
from ..outputs.show import print_json, say
from .correspond import corresponding


def run(asked: ConvertOptions) -> None:
    """Write B's weights in A's code, once A with them was seen to compute B's function."""
    claim_folder(asked.out, ("converted", "converted.safetensors", "converted.json", "correspondence.json"), [asked.b])
    group, found = corresponding((asked.like, asked.b), (asked.model_like, asked.model), asked, asked.device)
    if not found.proved:
        raise ValueError(
            f"B must correspond to A for its weights to be carried over. Got {found.verdict}: {found.reason}."
        )
    if found.unread:
        missing = ", ".join(found.unread[:4])
        raise ValueError(
            f"B must hold all that A reads. Got nothing for {missing} of A: B is part of it, or A has more."
        )
    a, b = group.models
    place = asked.out / ("converted" if group.checkpoints[0].tensors is None else "converted.safetensors")
    card = card_of(group, {"converted": group.names[1], "like": group.names[0], "command": asked.line}, {})
    written = export(in_code_of(a, b, found), place, card, largest_shard(asked.like))
    files = {
        "converted": keep_beside(asked.like, written),
        "correspondence": found.save(asked.out / "correspondence.json"),
    }
    if asked.as_json:
        print_json({"verdict": found.verdict, "error": found.error, "files": files})
        return
    say(found.headline)
    tell_written(files)
