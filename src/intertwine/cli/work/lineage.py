"""Work of ``intertwine lineage``."""

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path

from torch import Tensor

from ..._io import read_tensors
from ...errors import CheckpointError
from ...provenance import DERIVED, Lineage, Tree, lineage, lineage_of_states, tree_of_states
from ...symmetry import Symmetry
from ...symmetry.sharded import Renamed, ShardedState
from ...symmetry.spaces import axis_size
from .._files import HF, SETTINGS
from ..commands.lineage import LineageOptions
from ..inputs.adapters import is_adapter
from ..inputs.example import example_input
from ..inputs.hugging_face import load_pretrained
from ..inputs.networks import model_named_by, open_alone, read_checkpoint, symmetry_of
from ..outputs.files import claim_file
from ..outputs.results import show, write_one
from ..outputs.show import tell

_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
_LARGE = 500_000_000  # weights from which on networks are not run
_PRESENT = 0.25  # share of the model's tensors that a checkpoint must have: heads are replaced, layers dropped


def run(asked: LineageOptions) -> None:
    """Test whether two checkpoints were trained independently, or find the families among many."""
    claim_file(asked.out, asked.paths)
    found = _families(asked) if str(asked.paths[0]) == "tree" else _pair(asked)
    write_one(found, asked.out)
    show(found, asked.as_json, **({"p_value": found.p_value} if isinstance(found, Lineage) else {}))


def _pair(asked: LineageOptions) -> Lineage:
    paths = asked.paths
    states = [_opened(path) for path in paths]
    spec = asked.model or model_named_by(paths[0])
    sym = symmetry_of(spec, asked)
    a, b = (_named(state, sym, path, spec, other=k > 0) for k, (state, path) in enumerate(zip(states, paths)))
    others = [_named(_opened(path), sym, path, spec) for path in asked.independent or []]
    found = lineage_of_states(sym, a, b, others, asked.level)
    files = [*paths, *(asked.independent or [])]
    if found.verdict == DERIVED or not all(_fits(sym, state) for state in (a, b, *others)):
        return found
    models = [open_alone(spec, read_checkpoint(path)) for path in files]  # streams that rotate are found by running
    example = example_input(spec, asked)
    return lineage(models[0], models[1], example, models[2:], asked.level)


def _fits(sym: Symmetry, state: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint holds the model as it is, and a network that fits in memory several times."""
    shapes = {n: tuple(axis_size(axis) for axis in layout.axes) for n, layout in sym.layouts.items()}
    return sum(map(prod, shapes.values())) < _LARGE and all(n in state and state[n].shape == shapes[n] for n in shapes)


def _families(asked: LineageOptions) -> Tree:
    folder = asked.paths[1]
    found = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES or _holds_one(p))
    files = [p for p in found if not _is_result(p)]
    if len(files) < len(found):
        tell(f"left out, results of this program: {', '.join(p.name for p in found if p not in files)}")
    if len(files) < 2:
        raise ValueError(f"DIR must hold at least two checkpoints. Got {len(files)} in {str(folder)!r}.")
    known: dict[str, Symmetry] = {}
    states = {}
    for path in files:
        spec = asked.model or model_named_by(path)
        known[spec] = known.get(spec) or symmetry_of(spec, asked)
        states[path.name] = known[spec], _named(_opened(path), known[spec], path, spec)
    return tree_of_states(states)


def _holds_one(folder: Path) -> bool:
    """Whether a folder is one checkpoint: a model's directory, an adapter, or shards with their index."""
    return any((folder / name).is_file() for name in SETTINGS) or any(folder.glob("*.safetensors.index.json"))


def _is_result(path: Path) -> bool:
    """Whether a safetensors file holds a result, or the tensors beside one."""
    if path.suffix != ".safetensors" or not path.is_file():
        return False
    from safetensors import SafetensorError, safe_open

    with (
        suppress(SafetensorError),
        safe_open(path, framework="pt") as file,
    ):  # a damaged file is refused when it is read
        return str((file.metadata() or {}).get("kind")).startswith("intertwine.")
    return False


def _opened(path: Path) -> Mapping[str, Tensor]:
    """A checkpoint that is read tensor by tensor, or a torch file in memory."""
    if is_adapter(path):
        return load_pretrained(path).state_dict()
    sharded = path.is_dir() or path.name.endswith((".safetensors", ".index.json"))
    return ShardedState(path) if sharded else read_tensors(path)


def _named(
    state: Mapping[str, Tensor], sym: Symmetry, path: Path, spec: str, other: bool = False
) -> Mapping[str, Tensor]:
    """A checkpoint under the model's names: one beginning that all names have or lack is taken off or put on.

    Where transformers keeps other names on disk than in its model, it reads the checkpoint itself. ``other``: it may
    have other names and layouts, which the test looks for.

    Raises:
        ValueError: If it lacks most of the model's tensors, and may not.
    """
    wanted = sym.layouts.keys()
    starts = {name.partition(".")[0] + "." for name in [*state, *wanted]}
    tables = [{n: n for n in state}]
    tables += [{f"{start}{n}": n for n in state} for start in starts]
    tables += [{n.removeprefix(start): n for n in state} for start in starts]
    names = max(tables, key=lambda table: len(wanted & table.keys()))
    here = len(wanted & names.keys())
    if here < _PRESENT * len(wanted) and spec.startswith(HF):
        with suppress(CheckpointError):  # what is none of this model is said below
            return open_alone(spec, read_checkpoint(path)).state_dict()
    if here < _PRESENT * len(wanted) and not other:
        absent = next(n for n in wanted if n not in names)
        raise ValueError(
            f"checkpoint must be of the model. Got {str(path)!r}, which lacks {len(wanted) - here} of its "
            f"{len(wanted)} tensors, such as {absent!r}."
        )
    return Renamed(state, names)
