"""Words of messages and summaries that several rooms need."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile
from numbers import Integral


def check_whole(name: str, value: object) -> None:
    """Refuse what is no whole number, text with digits too.

    Raises:
        TypeError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number. Got {value!r}.")


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular for one.

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
    """What people call a layer; a model that is itself the layer has no name.

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
    """Words with a capital letter in front and a stop behind.

    Examples:
        >>> sentence("derived (p < 0.01)"), sentence("others: conv1, ...")
        ('Derived (p < 0.01).', 'Others: conv1, ...')
    """
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def first_line(error: Exception) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def near(name: object, known: Iterable[str]) -> str:
    """The end of an error about a wrong name: the known one that was probably meant, or nothing.

    Examples:
        >>> near("resnet2", ["resnet20", "mlp"]), near("cake", ["resnet20", "mlp"])
        (" Did you mean 'resnet20'?", '')
        >>> near("resnet21", ["resnet32", "resnet20"])  # of equally close ones that with the longer common beginning
        " Did you mean 'resnet20'?"
    """
    word = str(name).lower()
    close = get_close_matches(word, list(known), n=10)
    found = max(close, key=lambda k: (SequenceMatcher(None, k, word).ratio(), _shared(k, word)), default=None)
    return "" if found is None else f" Did you mean {found!r}?"


def _shared(one: str, other: str) -> int:
    """Letters that two words begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text, each column as wide as its widest cell.

    Examples:
        >>> columns([("layer", "score"), ("0", "1")])
        ['layer  score', '0      1']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
