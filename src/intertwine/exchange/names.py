"""Names of modules generalised over layers, as patterns that match exactly the intended modules.

Also packed experts, under the names that they have as separate modules.

transformers keeps ``experts.gate_up_proj (E, 2m, n)`` and ``experts.down_proj (E, n, m)``; quantisers turn them into
``experts.0.gate_proj``, ``experts.0.up_proj``, ``experts.0.down_proj`` and so on.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from .._words import beginning
from ..symmetry.description import Description
from ..symmetry.spaces import axis_size

_NUMBER, _DOT = r"\d+", r"\."


def unnumbered(name: str) -> str:
    """A name without layer numbers."""
    return re.sub(_NUMBER, "#", name)


def outline(smooth: str, balance: Sequence[str]) -> tuple[str, ...]:
    """Names of one mapping without its layer number: equal for the same mapping in every layer.

    Numbers in the common prefix of all names are layers (or experts). Later numbers distinguish parts of a layer,
    unless several of the balanced names differ only in them.
    """
    split = [name.split(".") for name in (smooth, *balance)]
    common = len(beginning(*(parts[:-1] for parts in split)))
    plain = [".".join(["#" if p.isdigit() else p for p in parts[:common]] + parts[common:]) for parts in split]
    loose = [".".join("#" if p.isdigit() else p for p in parts) for parts in split]
    balanced = [many if loose[1:].count(many) > 1 else one for one, many in zip(plain[1:], loose[1:])]
    return (plain[0], *dict.fromkeys(balanced))


def matches(pattern: str, names: Collection[str]) -> set[str]:
    """Names that a pattern matches; ``re:`` marks a regular expression matched from the beginning."""
    if not pattern.startswith("re:"):
        return {pattern} & set(names)
    compiled = re.compile(pattern.removeprefix("re:"))
    return {name for name in names if compiled.match(name)}


def expression(targets: Collection[str], names: Collection[str]) -> str:
    r"""The shortest ``re:.*ending$`` that matches the targets and no other name; else a list of alternatives.

    Examples:
        >>> layers = [f"layers.{i}.{part}" for i in range(3) for part in ("norm", "mlp.up", "mlp.down")]
        >>> expression([n for n in layers if n.endswith("up")], layers)
        're:.*up$'
        >>> expression(["layers.0.norm", "layers.2.norm"], layers)
        're:layers\\.(0|2)\\.norm$'
    """
    wanted = set(targets)
    for pattern in _candidates([name.split(".") for name in sorted(wanted)]):
        if matches(pattern, names) == wanted:
            return pattern
    alternatives = "|".join(re.escape(name) for name in sorted(wanted))
    return f"re:({alternatives})$"


def _candidates(split: list[list[str]]) -> Iterator[str]:
    """Patterns from short to long: first any number, then only the numbers that occur."""
    if len({len(parts) for parts in split}) > 1:
        return
    positions = [list(dict.fromkeys(parts[i] for parts in split)) for i in range(len(split[0]))]
    if any(len(found) > 1 and not all(word.isdigit() for word in found) for found in positions):
        return
    open_ = [_NUMBER if len(found) > 1 else re.escape(found[0]) for found in positions]
    listed = [f"({'|'.join(sorted(found, key=int))})" if len(found) > 1 else re.escape(found[0]) for found in positions]
    for words in (open_, listed):
        for count in range(1, len(words)):
            if not split[0][-count].isdigit():
                yield f"re:.*{_DOT.join(words[-count:])}$"
        yield f"re:{_DOT.join(words)}$" if len(split) > 1 else ".".join(split[0])


_PACKED = re.compile(r"^(?P<tensor>(.*\.)?experts\.(?!weight$|bias$)[a-z_0-9]*?[a-z][a-z_0-9]*?)(_bias)?$")


def packed(tensor: str) -> str:
    """Name of the packed-expert tensor to which a weight or bias belongs; empty if it belongs to none."""
    found = _PACKED.match(tensor)
    return found["tensor"] if found else ""


def unpacked(sym: Description, tensor: str, part: str = "") -> list[tuple[str, ...]]:
    """Module names of each expert in a packed tensor; ``part`` is one half, ``"gate"`` or ``"up"``."""
    parent, _, last = tensor.rpartition(".")
    names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    if part and len(names) > 1:
        names = (f"{part}_proj",)
    count = axis_size(sym.layouts[tensor].axes[0])
    return [tuple(f"{parent}.{i}.{name}" for name in names) for i in range(count)]


def with_experts(sym: Description, names: Collection[str]) -> list[str]:
    """Names of modules, with unpacked experts listed after the module that holds them."""
    tensors = [tensor for tensor in sym.layouts if packed(tensor) == tensor]
    found: list[str] = []
    for name in names:
        found.append(name)
        for experts in zip(*(unpacked(sym, t) for t in tensors if t.rpartition(".")[0] == name)):
            found += [module for modules in experts for module in modules]
    return found
