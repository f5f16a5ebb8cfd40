"""``intertwine lineage``: whether one checkpoint was trained independently of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from ..._untrusted.checkpoints import HF, SETTINGS
from ..._words import counted, first_line
from ...errors import CheckpointError, IntertwineError
from .._options import ExampleOptions, advanced, argument
from .._outputs import tell
from . import Finding, inputs, iw, torch

_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_LARGE = 500_000_000  # weights from which on networks are not run
_PRESENT = 0.25  # share of the model's tensors that a checkpoint must have: heads may be replaced, layers dropped


class Lineage(Finding, ExampleOptions):
    """Test whether two checkpoints were trained independently, from their weights alone.

    The verdict is "derived" (with a p-value and the derived blocks), "no sign of descent" or "cannot be told". If units
    are still in place, the p-value is exact, and tensors are read one at a time, so that checkpoints of any size fit.
    If units were moved, the networks are matched in memory, and --independent calibrates the result. 'tree' finds the
    families among all checkpoints of a folder. Every verdict has exit code 0.

    Example:
      intertwine lineage a.safetensors b.safetensors --model resnet20
      intertwine lineage one_directory another --model hf:one_directory --out lineage.html
      intertwine lineage tree checkpoints --model resnet20 --out tree.html
      intertwine lineage a.safetensors b.safetensors --independent seed1.safetensors --independent seed2.safetensors ...
    """

    python = 'iw.lineage(a, b, example_inputs); iw.lineage_tree({"a": a, "b": b, "c": c}, example_inputs)'

    paths: list[Path] = argument(
        "Two checkpoints (files, or folders of shards), or a folder of checkpoints.", ..., metavar="A B | tree DIR"
    )
    independent: list[Path] | None = advanced(
        "A checkpoint known to be independent of A, such as another seed; repeat it, at least four times.",
        metavar="FILE",
    )
    level: float = advanced("Significance level at which independence is rejected.", 1e-06, min=0, max=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.paths) != 2:
            raise ValueError(f"lineage must be given A and B, or tree and DIR. Got {len(self.paths)} paths.")
        if str(self.paths[0]) == "tree":
            if not self.paths[1].is_dir():
                raise ValueError(f"DIR must be a folder of checkpoints. Got {str(self.paths[1])!r}.")
        elif self.paths[0].resolve() == self.paths[1].resolve():
            raise ValueError(f"B must be another checkpoint than A. Got {str(self.paths[0])!r} twice.")

    def find(self) -> iw.Lineage | iw.provenance.Tree:
        return _families(self) if str(self.paths[0]) == "tree" else _pair(self)

    def plain(self, found: iw.Lineage | iw.provenance.Tree) -> dict[str, Any]:
        return super().plain(found) | ({"p_value": found.p_value} if isinstance(found, iw.Lineage) else {})


def _pair(asked: Lineage) -> iw.Lineage:
    paths = asked.paths
    spec = asked.model or inputs.model_named_by(paths[0])
    states = [_opened(path, spec) for path in paths]
    sym = inputs.symmetry_of(spec, asked)
    a, b = (_named(state, sym, path, spec, other=k > 0) for k, (state, path) in enumerate(zip(states, paths)))
    others = [_named(_opened(path, spec), sym, path, spec) for path in asked.independent or []]
    found = iw.provenance.lineage_of_states(sym, a, b, others, asked.level)
    files = [*paths, *(asked.independent or [])]
    if found.verdict == iw.provenance.DERIVED or not all(_fits(sym, state) for state in (a, b, *others)):
        return found
    # rotated streams can only be found by running the models
    models = [inputs.open_alone(spec, inputs.read_checkpoint(path)) for path in files]
    return iw.provenance.lineage_folded(models, inputs.example_input(spec, asked), sym, asked.level) or found


def _fits(sym: iw.Symmetry, state: Mapping[str, torch.Tensor], count: int = 1) -> bool:
    """Whether a checkpoint holds the model in its own shapes, and ``count`` such networks fit in memory comfortably."""
    shapes = {n: layout.shape for n, layout in sym.layouts.items()}
    return count * _weights(sym) < _LARGE and all(n in state and state[n].shape == shapes[n] for n in shapes)


def _weights(sym: iw.Symmetry) -> int:
    return sum(prod(layout.shape) for layout in sym.layouts.values())


def _families(asked: Lineage) -> iw.provenance.Tree:
    folder = asked.paths[1]
    one = lambda p: any((p / name).is_file() for name in SETTINGS) or any(p.glob("*.safetensors.index.json"))
    found = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES or one(p))  # or a folder that is one checkpoint
    files = [p for p in found if not _is_result(p)]
    if len(files) < len(found):
        tell(f"left out, results of this program: {', '.join(p.name for p in found if p not in files)}")
    if len(files) < 2:
        raise ValueError(f"DIR must hold at least two checkpoints. Got {len(files)} in {str(folder)!r}.")
    known: dict[str, iw.Symmetry] = {}
    states, specs, refused = {}, dict[str, str](), dict[Path, Exception]()
    for path in files:
        try:
            specs[path.name] = spec = asked.model or inputs.model_named_by(path)
            known[spec] = known.get(spec) or inputs.symmetry_of(spec, asked)
            states[path.name] = known[spec], _named(_opened(path, spec), known[spec], path, spec)
        except (IntertwineError, ValueError) as error:
            refused[path] = error
    if len(states) < 2:
        raise next(iter(refused.values()))
    for path, why in refused.items():
        tell(f"left out, {path.name}: {first_line(why)}")

    def folded(names: Sequence[str]) -> iw.provenance.States:
        if not all(_fits(*states[name], len(names)) for name in names):
            tell(f"rotated copies were not looked for among {counted(len(names), 'large network')}: compare two alone")
            return {}
        models = {name: inputs.open_alone(specs[name], inputs.read_checkpoint(folder / name)) for name in names}
        return iw.provenance.in_one_gauge(models, inputs.example_input(specs[names[0]], asked))

    return iw.provenance.tree_of_states(states, folded=folded)


def _is_result(path: Path) -> bool:
    """Whether a safetensors file holds a result of this program, or the tensors of one."""
    from safetensors import SafetensorError, safe_open

    if path.suffix == ".safetensors" and path.is_file():
        with suppress(SafetensorError), safe_open(path, framework="pt") as file:  # damaged files are refused when read
            return str((file.metadata() or {}).get("kind")).startswith("intertwine.")
    return False


def _opened(path: Path, spec: str) -> Mapping[str, torch.Tensor]:
    """A checkpoint read tensor by tensor, or a torch file loaded into memory."""
    from ..._io import read_tensors

    if inputs.is_adapter(path):
        return inputs.load_pretrained(path).state_dict()
    if not path.is_dir() and not path.name.endswith((".safetensors", ".index.json")):
        return read_tensors(path)
    with suppress(CheckpointError):  # tensors that loading splits
        return inputs.stored_state(path, spec)
    return iw.symmetry.StoredState(path)


def _named(
    state: Mapping[str, torch.Tensor], sym: iw.Symmetry, path: Path, spec: str, other: bool = False
) -> Mapping[str, torch.Tensor]:
    """A checkpoint under the model's names; with ``other``, its names may differ, and the test searches for them."""
    # a prefix that all names have or lack is stripped or added
    wanted = sym.layouts.keys()
    starts = {name.partition(".")[0] + "." for name in [*state, *wanted]}
    tables: list[Mapping[str, str]] = [{n: n for n in state}]
    tables += [{f"{start}{n}": n for n in state} for start in starts]
    tables += [{n.removeprefix(start): n for n in state} for start in starts]
    tables.append(inputs.plain_names({n: n for n in state}, wanted))
    names = max(tables, key=lambda table: len(wanted & table.keys()))
    here = len(wanted & names.keys())
    if here < len(wanted) and not sym.aliases.keys() | wanted >= names.keys() and spec.startswith(HF):
        # names on disk may differ from the model's, as those of experts do
        if _weights(sym) < _LARGE:
            with suppress(CheckpointError):  # a checkpoint of another model is refused below
                loaded = inputs.open_alone(spec, inputs.read_checkpoint(path)).state_dict()
                if len(wanted & loaded.keys()) > here:
                    return loaded
        elif not other:
            absent = next(n for n in wanted if n not in names)
            tell(
                f"{path.name} has no tensors named {absent!r}, ...: {len(wanted) - here} of {len(wanted)} not compared"
            )
    if here < _PRESENT * len(wanted) and not other:
        absent = next(n for n in wanted if n not in names)
        raise ValueError(
            f"checkpoint must be of the model. Got {str(path)!r}, which lacks {len(wanted) - here} of its "
            f"{len(wanted)} tensors, such as {absent!r}."
        )
    return iw.symmetry.LazyState.renamed(state, names)
