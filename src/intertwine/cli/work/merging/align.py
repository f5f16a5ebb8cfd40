"""Work of ``intertwine align``."""

from pathlib import Path
from typing import Any

from ....matching import Alignment, align, align_sharded
from ....merging import export, transport
from ..._options import split_commas
from ..._solvers import solver_of
from ...commands.merging.align import AlignOptions
from ...inputs.networks import model_named_by, symmetry_of
from ...inputs.pairs import Group, Use, card_of, open_group
from ...outputs.files import claim_folder, keep_beside, largest_shard
from ...outputs.results import tell_written
from ...outputs.show import print_json, say

_WRITTEN = ("alignment.safetensors", "results.json", "report.html", "moved", "moved.safetensors", "moved.json")
_LOOK_AT_DATA = ("activations", "mixed", "straight-through")


def run(asked: AlignOptions) -> None:
    """Bring checkpoint B into the basis of checkpoint A: other weights, the same function."""
    solver = solver_of(asked.method)
    chosen = split_commas(asked.kinds, "--kinds")
    claim_folder(asked.out, _WRITTEN, [asked.a, asked.b])
    if asked.sharded:
        _say(*_sharded(asked, chosen), asked.as_json)
        return
    use: Use = "always" if asked.method.partition(":")[0] in _LOOK_AT_DATA else "if given"
    specs = [asked.model, asked.model_b or asked.model]
    group = open_group([asked.a, asked.b], specs, asked, use, asked.device)
    loader = group.loader("train", asked.examples, asked.batch_size) if group.data is not None else None
    if asked.method == "transport":
        moved, said, files = _transported(group)
    else:
        one, other = group.models
        found = align(one, other, group.example, method=solver, loader=loader, seed=asked.seed, kinds=chosen)
        moved, (said, files) = found.apply(other), _written(found, asked.out)
    place, card = _place(group, asked.out), _card(group, asked.method, asked.line)
    files["moved"] = keep_beside(asked.b, export(moved, place, card, largest_shard(asked.b)))
    _say(said, files, asked.as_json)


def _say(said: dict[str, Any], files: dict[str, Path], as_json: bool) -> None:
    if as_json:
        print_json({**said, "files": files})
        return
    say(said["text"])
    tell_written(files)


def _written(found: Alignment, out: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    files = {
        "alignment": found.save(out / "alignment.safetensors"),
        "results": found.save(out / "results.json"),
        "report": found.to_html(out / "report.html"),
    }
    keys = ("method", "objective", "before", "after", "notes")
    said = {key: getattr(found, key) for key in keys}
    return {"text": str(found), **said, "spaces": found.to_frame().to_dict("records")}, files


def _sharded(asked: AlignOptions, kinds: list[str] | None) -> tuple[dict[str, Any], dict[str, Path]]:
    """Align without ever holding a network; the model is built without weights."""
    if asked.method != "weights":
        raise ValueError(f"--method must be weights for --sharded. Got {asked.method!r}.")
    sym = symmetry_of(asked.model or model_named_by(asked.a), asked)
    found = align_sharded(asked.a, asked.b, sym, asked.out / "moved", kinds or ("permutation", "sign"), asked.seed)
    said, files = _written(found, asked.out)
    return said, {**files, "moved": keep_beside(asked.b, asked.out / "moved")}


def _transported(group: Group) -> tuple[Any, dict[str, Any], dict[str, Path]]:
    one, other = group.models
    found = transport(one, other, group.example)
    said = {"text": found.summary(), "method": "transport", "sizes": dict(found.sizes), "costs": dict(found.costs)}
    return found.apply(other), said, {}


def _place(group: Group, out: Path) -> Path:
    """A folder where B came as one, a file otherwise."""
    return out / ("moved" if group.checkpoints[1].tensors is None else "moved.safetensors")


def _card(group: Group, method: str, command: str) -> dict[str, Any]:
    a, b = group.names
    return card_of(group, {"aligned": b, "to": a, "method": method, "command": command}, {})
