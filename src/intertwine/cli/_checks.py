"""Checks of options before anything heavy is imported: one for each option name, the same in all commands.

They check names, files and choices; whatever needs the models or the data is checked later, by the command's work.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._memory import parse_memory
from .._untrusted.checkpoints import HF, SETTINGS, check_checkpoint, existing, hub
from .._words import KINDS, check_known, named_values, near, read
from ..errors import DataError
from ._catalogue import catalogue


def check(field: str, value: Any) -> None:
    """Refuse an option value that cannot be right."""
    if value is None:
        return
    for word in (value if isinstance(value, list) else [value]) if field in _CHOICES else ():
        known = [n for name in _CHOICES[field] for n in catalogue().get(name, [name])]
        check_known(f"--{field.replace('_', '-')}", word, known)
    if field in _CHECKS:
        _CHECKS[field](value)


def words(values: Sequence[str] | None, option: str) -> list[str]:
    """Words of an option that may be repeated and may join several by commas; an unset shell variable is refused."""
    found = [word.strip() for value in values or () for word in value.split(",") if word.strip()]
    if values and not found:
        raise ValueError(f"{option} must hold names joined by commas. Got {','.join(values)!r}, without any.")
    return found


def check_suffix(out: Path | None, suffixes: Sequence[str]) -> None:
    """Refuse a file type that a command does not write, and a folder where a file is meant."""
    folder = "" in suffixes
    if out is not None and out.is_dir() and not folder:
        raise ValueError(f"--out must be a file. Got the folder {str(out)!r}.")
    if out is None or (out.suffix in suffixes and not (folder and not out.suffix and out.is_file())):
        return
    known = [suffix for suffix in suffixes if suffix not in ("", ".htm")]
    listed = known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"
    raise ValueError(f"--out must end in {listed}{', or be a folder' if folder else ''}. Got {str(out)!r}.")


def check_method(method: str, others: Sequence[str]) -> None:
    """Refuse an alignment method that does not exist, and options after the colon that the method does not have."""
    solvers = catalogue()["methods"]
    name, colon, text = method.partition(":")
    check_known("--method", name, [*solvers, *others])
    if colon and name in others:
        raise ValueError(f"--method {name} must be without options. Got {method!r}.")
    for key, value in named_values(text, method):
        check_known(f"option of {name}", key, [*solvers[name]])
        if solvers[name][key] == "number" and value not in ("true", "false", "null"):
            read("number", f"{name}:{key}", value)


def check_model(spec: str) -> None:
    """Refuse a model that does not exist, and arguments that a built-in one lacks; a factory may take any."""
    name, colon, rest = spec.partition(":")
    if spec.startswith(HF):
        if Path(rest).is_file():
            raise ValueError(f"model must be hf:DIRECTORY. Got the file {rest!r}. Say {HF}{Path(rest).parent}.")
        if not any((Path(rest) / file).is_file() for file in SETTINGS):
            raise ValueError(
                f"model must be hf:DIRECTORY with a config.json. Got {rest!r}, which has none.{hub(rest, always=True)}"
            )
    elif any((Path(spec) / file).is_file() for file in SETTINGS):
        raise ValueError(f"model must be hf:DIRECTORY for a directory. Got {spec!r}. Did you mean {HF + spec!r}?")
    elif name in catalogue()["models"]:
        _check_arguments(name, rest)
    elif not colon:
        known = list(catalogue()["models"])
        raise ValueError(
            f"model must be one of {', '.join(known)}, or package.module:factory, path/to/file.py:factory, or "
            f"hf:DIRECTORY. Got {spec!r}.{near(spec, known) or hub(spec)}"
        )
    else:
        check_factory("model", name)


def check_factory(what: str, place: str) -> None:
    """Refuse a file or module that is not there; the current folder counts, as it does for the factory itself."""
    top = place.partition(".")[0]
    if place.endswith(".py"):
        existing(f"file of {what}", Path(place))
    elif not (Path(f"{top}.py").is_file() or Path(top).is_dir()) and not (top and importlib.util.find_spec(top)):
        raise ValueError(f"{what} must name a module that imports. Got {place!r}, which is neither installed nor here.")


def _check_arguments(name: str, text: str) -> None:
    """Refuse arguments that a built-in network does not have, and values of another type than the default."""
    usual = catalogue()["models"][name]["arguments"]
    for key, value in named_values(text, f"{name}:{text}"):
        check_known(f"argument of {name}", key, list(usual))
        if type(usual[key]) in KINDS:
            read(KINDS[type(usual[key])], key, value)


def _path_in(what: str, spec: str, forms: Sequence[str]) -> str:
    """The path in a word of one of the given forms, such as ``parquet:PATH`` or ``cifar10[:PATH]``."""
    kind, _, path = spec.partition(":")
    kinds = {form.partition(":")[0].removesuffix("["): form for form in forms}
    form = kinds.get(kind, "")
    if not form or (path and ":" not in form) or (not path and ":" in form and "[" not in form):
        raise ValueError(f"{what} must be one of {', '.join(forms)}. Got {spec!r}.{near(kind, kinds)}")
    return path


def _data(spec: str) -> None:
    if path := _path_in("data", spec, catalogue()["data"]):
        existing("data", Path(path), DataError, "file or folder")


def _each(check_one: Callable[[Any], object]) -> Callable[[Sequence[Any]], object]:
    return lambda values: [check_one(value) for value in values]


def _several(paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        raise ValueError(f"at least two checkpoints must be given. Got {len(paths)}.")
    _each(check_checkpoint)(paths)


def _network(text: str) -> None:
    """Refuse what is neither a model nor a checkpoint, which names its own model."""
    if not Path(text.removeprefix(HF)).exists():
        check_model(text)
    elif not text.startswith(HF) or not Path(text.removeprefix(HF)).is_dir():
        check_checkpoint(Path(text.removeprefix(HF)))


def _concepts(spec: str) -> None:
    for place in filter(
        None, _path_in("--concepts", spec.removesuffix("+colours"), catalogue()["concepts"]).split("@")
    ):
        existing("--concepts", Path(place), kind="file or folder")


def _families(values: Sequence[str]) -> None:
    """Refuse families that do not exist; some names end in a number, such as ``rank-4``."""
    known = catalogue()["families"]
    for word in values:
        head, dash, value = word.partition("-")
        numbered = next((name for name in known if dash and name.startswith(f"{head}-")), None)
        if numbered is None:
            check_known("--families", word, known)
        else:
            read("whole" if numbered == "rank-R" else "number", f"{head}-", value)


def _device(text: str) -> None:
    kind, colon, index = text.partition(":")
    check_known("--device", kind, _DEVICES)
    if colon:
        read("whole", "number of --device", index)


def _activation(name: str) -> None:
    """Refuse an activation that is neither known nor named as module:function; a number may follow a colon."""
    head, colon, _ = name.partition(":")
    known = catalogue()["activations"]
    if head in known or name.startswith("x^"):
        return
    if not colon:
        raise ValueError(
            f"activation must be one of {', '.join(known)}, or module:function. Got {name!r}.{near(name, known)}"
        )
    check_factory("activation", head)


_DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "mtia", "npu", "xla")

# Allowed values of an option: words, and names of lists in the catalogue.
_CHOICES: dict[str, tuple[str, ...]] = {
    "format": ("formats",), "measures": ("measures",), "kinds": ("kinds",),
    "recipe": ("recipes",), "gated": ("gated", "none"), "split": ("train", "validation", "test", "all"),
    "precision": ("float32", "bfloat16"), "dtype": ("float32", "bfloat16", "float16"),
    "interpolation": ("linear", "spherical"), "repair": ("auto", "none", "recalibrate", "repair", "rescale"),
    "keep": ("best", "last"), "start": ("direct", "random"), "skip": ("a", "mapped", "b"),
    "tail_norm": ("eval", "train"), "stream": ("hadamard", "random", "principal", "none"),
    "heads": ("hadamard", "random", "none"),
}  # fmt: skip

_CHECKS: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("a", "b", "like", "weights"), check_checkpoint),
    **dict.fromkeys(("model", "model_b", "model_like"), check_model),
    "checkpoints": _several,
    "paths": lambda paths: None if str(paths[0]) == "tree" else _each(check_checkpoint)(paths),
    "independent": _each(check_checkpoint),
    "network": _network,
    "data": _data,
    "concepts": _concepts,
    "size": partial(read, "sides", "--size"),
    "units": partial(read, "units", "--units"),
    "tokenizer": lambda said: None if said in ("bytes", "chars") else existing("--tokenizer", Path(said), DataError),
    "input_shape": partial(read, "shape", "--input-shape"),
    "memory": parse_memory,
    "device": _device,
    "activations": _each(_activation),
    "families": _families,
    "names": _each(lambda name: check_known("experiment", name, catalogue()["experiments"])),
    "results": lambda path: existing("results", path),
}
