"""Raised and lowered numerals for groups in symbols."""

_LOW = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_HIGH = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def subscript(number: int) -> str:
    """A lowered number.

    Examples:
        >>> f"S{subscript(48)}", f"R{superscript(7)}", f"R{superscript(1)}"
        ('S₄₈', 'R⁷', 'R')
    """
    return str(number).translate(_LOW)


def superscript(number: int, always: bool = False) -> str:
    """A raised number; nothing for 1, unless ``always`` is said."""
    return str(number).translate(_HIGH) if always or number != 1 else ""
