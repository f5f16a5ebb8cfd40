"""Words for messages and summaries that several rooms need, and arguments as text, such as ``width=512,bn=false``."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile
from numbers import Integral
from typing import Any


def release() -> str:
    """Version of the library, which only an installation knows: ``"source"`` where it runs from its source."""
    from importlib.metadata import PackageNotFoundError, version  # takes a fifth of the time of --help

    try:
        return version("intertwine")
    except PackageNotFoundError:
        return "source"


def check_whole(name: str, value: object) -> None:
    """Refuse anything that is not a whole number, text with digits included.

    Raises:
        TypeError: If it is not a whole number.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number. Got {value!r}.")


def check_share(name: str, value: float) -> None:
    """Refuse a level or a confidence that is not strictly between 0 and 1.

    Raises:
        ValueError: If it is not, such as 95 for 95 %.
    """
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1. Got {value}.")


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular if the number is one.

    Examples:
        >>> counted(1, "space"), counted(2000, "fixed axis"), counted(0, "class"), counted(3, "matrix")
        ('1 space', '2,000 fixed axes', '0 classes', '3 matrices')
        >>> counted(20, "epoch"), counted(2, "batch")  # the first is said with a k
        ('20 epochs', '2 batches')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("axis"):
        plural = f"{noun[:-2]}es"
    elif noun.endswith("ix"):
        plural = f"{noun[:-2]}ices"
    elif noun.endswith(("family", "entry", "copy")):
        plural = f"{noun[:-1]}ies"
    else:
        plural = f"{noun}es" if noun.endswith(("s", "x", "tch", "nch", "rch", "sh")) else f"{noun}s"
    return f"{number:,} {plural}"


def layer_title(name: str) -> str:
    """Name of a layer for people; a model that is itself the layer has no name.

    Examples:
        >>> layer_title("conv1"), layer_title("")
        ('conv1', 'the model itself')
    """
    return name or "the model itself"


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first names, and dots where there are more.

    Examples:
        >>> listed(["a", "b"]), listed("abcd")
        ('a, b', 'a, b, c, ...')
    """
    some = list(names)
    return ", ".join([*some[:most], *["..."] * (len(some) > most)])


def sentence(text: str) -> str:
    """A text with a capital first letter and a full stop at the end.

    Examples:
        >>> sentence("derived (p < 0.01)"), sentence("others: conv1, ...")
        ('Derived (p < 0.01).', 'Others: conv1, ...')
    """
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def first_line(error: Exception) -> str:
    """First line of an error's message; the name of its class if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def near(name: object, known: Iterable[str]) -> str:
    """Suggestion that ends an error about an unknown name: the known name that was probably meant, or nothing.

    Examples:
        >>> near("resnet2", ["resnet20", "mlp"]), near("cake", ["resnet20", "mlp"])
        (" Did you mean 'resnet20'?", '')
        >>> near("resnet21", ["resnet32", "resnet20"])  # of equally close ones that with the longer common beginning
        " Did you mean 'resnet20'?"
        >>> near("cka", ["cknna", "linear_cka"])  # a word of one before other words
        " Did you mean 'linear_cka'?"
    """
    word, known = str(name).lower(), list(known)
    if whole := next((k for k in known if word in k.split("_")), None):
        return f" Did you mean {whole!r}?"
    close = get_close_matches(word, known, n=10)
    found = max(close, key=lambda k: (SequenceMatcher(None, k, word).ratio(), len(beginning(k, word))), default=None)
    return "" if found is None else f" Did you mean {found!r}?"


def check_known(what: str, given: str, known: Collection[str]) -> None:
    """Refuse a name that is not known.

    Raises:
        ValueError: If it is not; the message lists the names and suggests one.
    """
    if given not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}. Got {given!r}.{near(given, known)}")


def beginning(*several: Sequence[str]) -> list[str]:
    """Common beginning of several words, or of paths of names.

    Examples:
        >>> beginning(["layers", "0", "up"], ["layers", "0", "down"])
        ['layers', '0']
    """
    return [found[0] for found in takewhile(lambda found: len(set(found)) == 1, zip(*several))]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text, each column as wide as its widest cell.

    Examples:
        >>> columns([("layer", "score"), ("0", "1")])
        ['layer  score', '0      1']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def named_values(text: str, spec: str) -> Iterator[tuple[str, str]]:
    """Names and values parsed from text such as ``"width=512,bn=false"``; ``spec`` is the whole text, for an error.

    Raises:
        ValueError: If a part is not written ``name=value``.
    """
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise ValueError(f"arguments must be written name=value. Got {part!r} in {spec!r}.")
        yield key, value


def read(kind: str, name: str, text: str) -> Any:
    """A value of a kind such as ``"shape"``, parsed from text; ``name`` is what an error calls it.

    Raises:
        ValueError: If the text cannot be parsed.
    """
    convert, rule = _KINDS[kind]
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {rule}. Got {text!r}.") from None


def written(value: object) -> str:
    """A value as text that can be parsed back.

    Examples:
        >>> written((64, 32)), written(False)
        ('64-32', 'false')
    """
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _positive(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and int(text)):
        raise ValueError
    return int(text)


def _pair(text: str) -> tuple[int, int]:
    first, second = map(_positive, text.lower().split("x"))
    return first, second


def _units(text: str) -> list[int]:
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [number for first, *last in ends for number in range(first, max(last, default=first) + 1)]


KINDS: dict[type, str] = {bool: "truth", int: "whole", float: "number", tuple: "wholes", list: "wholes"}  # by type
# Kinds of values given as text: how they are parsed, and what an error says they must be.
_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "whole": (int, "a whole number"),
    "number": (float, "a number"),
    "truth": (lambda t: {"true": True, "false": False}[t.lower()], "true or false"),
    "wholes": (lambda t: tuple(int(part) for part in t.split("-")), "whole numbers joined by '-'"),
    "numbers": (lambda t: [float(part) for part in t.split(",")], "numbers joined by commas"),
    "pair": (_pair, "two whole numbers joined by x, such as 14x14"),
    "sides": (
        lambda t: [_positive(part) for part in t.lower().split("x", 1)],
        "pixels, such as 224, or height x width, such as 224x320",
    ),
    "shape": (lambda t: [_positive(part) for part in t.split(",")], "positive whole numbers joined by commas"),
    "units": (_units, "whole numbers and ranges joined by commas, such as 0-2,5"),
}
