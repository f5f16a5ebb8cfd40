"""Arguments as text, such as ``width=512,bn=false``: how they are read, what they must be, how they are written."""

from collections.abc import Callable, Iterator
from typing import Any


def named_values(text: str, spec: str) -> Iterator[tuple[str, str]]:
    """Names and values out of text such as ``"width=512,bn=false"``; ``spec`` is all of it, for an error.

    Raises:
        ValueError: If a part is not written so.
    """
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise ValueError(f"arguments must be written name=value. Got {part!r} in {spec!r}.")
        yield key, value


def read(kind: str, name: str, text: str) -> Any:
    """A value of a kind out of text, such as ``"shape"``; ``name`` is what an error calls it.

    Raises:
        ValueError: If it does not read.
    """
    convert, rule = _KINDS[kind]
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {rule}. Got {text!r}.") from None


def written(value: object) -> str:
    """A value as text from which it can be read.

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
# Kinds of values that are text: how they are read, and what they must be.
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
