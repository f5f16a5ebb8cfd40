"""Values of options as text: read in one way everywhere, with nothing imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def words(values: Sequence[str] | None, option: str) -> list[str]:
    """Words of an option that may be repeated and may hold several, joined by commas.

    Raises:
        ValueError: If it was given without any word, as an unset shell variable does.
    """
    found = [word.strip() for value in values or () for word in value.split(",") if word.strip()]
    if values and not found:
        raise ValueError(f"{option} must hold names joined by commas. Got {','.join(values)!r}, without any.")
    return found


def whole(name: str, text: str) -> int:
    """A whole number."""
    return _read(name, text, int, "a whole number")


def number(name: str, text: str) -> float:
    """A number."""
    return _read(name, text, float, "a number")


def truth(name: str, text: str) -> bool:
    """True or false, as a word."""
    return _read(name, text.lower(), {"true": True, "false": False}.__getitem__, "true or false")


def wholes(name: str, text: str) -> list[int]:
    """Whole numbers joined by ``-``, as built-in networks take them."""
    return _read(name, text, lambda t: [int(part) for part in t.split("-")], "whole numbers joined by '-'")


def numbers(name: str, text: str) -> list[float]:
    """Numbers joined by commas."""
    return _read(name, text, lambda t: [float(part) for part in t.split(",")], "numbers joined by commas")


def pair(name: str, text: str) -> tuple[int, int]:
    """Two whole numbers joined by ``x``."""

    def two(said: str) -> tuple[int, int]:
        first, second = map(_positive, said.lower().split("x"))
        return first, second

    return _read(name, text, two, "two whole numbers joined by x, such as 14x14")


def sides(text: str) -> list[int]:
    """``--size``: the side of a square, or a height and a width."""
    rule = "pixels, such as 224, or height x width, such as 224x320"
    return _read("--size", text, lambda t: [_positive(part) for part in t.lower().split("x", 1)], rule)


def shape(text: str) -> list[int]:
    """``--input-shape``: sizes of axes, the batch first."""
    rule = "positive whole numbers joined by commas"
    return _read("--input-shape", text, lambda t: [_positive(part) for part in t.split(",")], rule)


def _read(name: str, text: str, read: Callable[[str], Any], rule: str) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {rule}. Got {text!r}.") from None


def _positive(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and int(text)):
        raise ValueError
    return int(text)
