"""Untrusted text on a screen: nothing in it moves the cursor, changes colours or turns the direction of writing."""

import json
import re

# What a terminal obeys (controls of both ranges), what turns the direction of writing or joins letters invisibly, what
# breaks lines without being a line feed, and halves of characters, which cannot be written at all.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
    r"|[\U000e0000-\U000e007f]"
)
_LONGEST = 2000  # characters: a screen of 25 lines


def printable(text: str) -> str:
    r"""Text in which everything that a terminal or a page would obey is written as its number.

    Returns:
        The same text if it holds only letters, signs and spaces.

    Examples:
        >>> printable("a\x1b[31mb")
        'a\\x1b[31mb'
        >>> printable("photo\u202egnp.exe")
        'photo\\u202egnp.exe'
        >>> printable("Größe 5 µm, 網")
        'Größe 5 µm, 網'
    """
    return _OBEYED.sub(_number, text)


def printable_json(text: str, shown: bool = False) -> str:
    r"""JSON with the same characters written as escapes.

    Args:
        text: JSON.
        shown: Whether the escapes themselves are to be seen by whoever reads it; otherwise it reads as before.

    Examples:
        >>> json.loads(printable_json('"a\u202eb"')) == "a\u202eb"
        True
        >>> json.loads(printable_json('"a\u202eb"', shown=True))
        'a\\u202eb'
    """
    return _OBEYED.sub(lambda found: "\\" * shown + json.dumps(found[0])[1:-1], text)


def on_one_screen(text: str) -> str:
    """Text that fits on a screen: the middle of a longer one is left out, with a note of how much.

    Examples:
        >>> len(on_one_screen("x" * 10**6)) < 2100
        True
        >>> on_one_screen("short")
        'short'
    """
    if len(text) <= _LONGEST:
        return text
    kept = _LONGEST // 2
    return f"{text[:kept]} ... [{len(text) - 2 * kept:,} characters left out] ... {text[-kept:]}"


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
