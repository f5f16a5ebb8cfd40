"""Experts that a model holds as one tensor each, under the names that they have as modules of their own.

transformers keeps ``experts.gate_up_proj (E, 2m, n)`` and ``experts.down_proj (E, n, m)``; quantisers turn them into
``experts.0.gate_proj``, ``experts.0.up_proj``, ``experts.0.down_proj`` and so on.
"""

import re
from collections.abc import Collection

from ..symmetry.description import Description
from ..symmetry.spaces import axis_size

_PACKED = re.compile(r"^(?P<tensor>(.*\.)?experts\.(?!weight$|bias$)[a-z_0-9]*?[a-z][a-z_0-9]*?)(_bias)?$")


def packed(tensor: str) -> str:
    """Name of the tensor of packed experts that a weight or bias belongs to; empty if it belongs to none."""
    found = _PACKED.match(tensor)
    return found["tensor"] if found else ""


def unpacked(sym: Description, tensor: str, part: str = "") -> list[tuple[str, ...]]:
    """Names of the modules of each expert that a packed tensor holds.

    Args:
        sym: The symmetry.
        tensor: Name of the tensor.
        part: ``"gate"`` or ``"up"`` for one half of a joint tensor.
    """
    parent, _, last = tensor.rpartition(".")
    names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    if part and len(names) > 1:
        names = (f"{part}_proj",)
    count = axis_size(sym.layouts[tensor].axes[0])
    return [tuple(f"{parent}.{i}.{name}" for name in names) for i in range(count)]


def with_experts(sym: Description, names: Collection[str]) -> list[str]:
    """Names of modules, those of unpacked experts behind the module that holds them."""
    held: dict[str, list[list[tuple[str, ...]]]] = {}
    for tensor in sym.layouts:
        if packed(tensor) == tensor:
            held.setdefault(tensor.rpartition(".")[0], []).append(unpacked(sym, tensor))
    found: list[str] = []
    for name in names:
        found.append(name)
        for experts in zip(*held.get(name, ())):
            found += [module for modules in experts for module in modules]
    return found
