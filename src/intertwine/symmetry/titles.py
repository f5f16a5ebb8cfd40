"""Titles of spaces: what people call a hidden space, such as "layer 3: MLP units", from the names of its tensors.

Titles are for reading only: nothing is found or decided by them, and the space's own name stands beside them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from .spaces import Layout, Space, spaces_of

_LISTS = ("h", "layer", "layers", "block", "blocks", "resblocks")  # of a model's repeated blocks
_STACKS = ("encoder", "decoder")
_PERCEPTRONS = ("mlp", "ffn", "feed_forward", "feedforward", "intermediate")
_CONVOLUTION = 3  # fewest axes of a convolution's weight
_NAMED = 3  # modules that a title lists
_STILL = "a constant that differs from unit to unit"


def titles(spaces: Iterable[Space], layouts: Mapping[str, Layout]) -> dict[str, str]:
    """Titles by names of spaces; equal ones have the space's name behind them."""
    spaces = tuple(spaces)
    tensors: dict[str, list[str]] = {space.name: [] for space in spaces}
    beside: dict[str, set[str]] = {space.name: set() for space in spaces}  # spaces on one axis with it
    for name, layout in layouts.items():
        for axis in layout.axes:
            found = set(spaces_of([axis]))
            for one in found:
                tensors[one].append(name)
                beside[one] |= found
    parents = {parent for space in spaces for parent in space.parents}
    said = {}
    for space in spaces:
        shapes = {name: len(layouts[name].axes) for name in tensors[space.name]}
        said[space.name] = _title(space, shapes, space.name in parents, bool(beside[space.name] & parents))
    counts = Counter(said.values())
    return {name: f"{title} ({name})" if counts[title] > 1 else title for name, title in said.items()}


def _title(space: Space, shapes: Mapping[str, int], is_parent: bool, near_heads: bool) -> str:
    if not shapes:
        return space.name
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in shapes))
    blocks = list(dict.fromkeys(filter(None, map(_block, modules))))
    alone = [module for module in modules if not _block(module)]
    if len(blocks) > 1 and len(blocks) + len(alone) > 2:  # a chain passes from one block to the next only
        return f"residual stream from {space.name.partition('[')[0].rpartition('.')[0] or space.name}"
    block = blocks[0] if blocks else ""
    where = f"{_words(block)}: " if block else ""
    inner = [module.removeprefix(f"{block}.") for module in modules if _block(module) == block]
    attention = any("att" in module.lower() for module in inner)
    names = ", ".join(dict.fromkeys(module.rpartition(".")[2] for module in inner[:_NAMED]))
    copies = "head" if attention else "expert" if any("expert" in module.lower() for module in inner) else "group"
    if near_heads and any(_STILL in reason for reason in space.reasons):
        return f"{where}rotary pairs"
    if space.parents:
        return f"{where}within each {copies}: {names}"
    if is_parent:
        return f"{where}{'attention heads' if attention else 'experts' if copies == 'expert' else f'groups of {names}'}"
    if any(part in _PERCEPTRONS for part in inner[0].split(".")):
        return f"{where}MLP units"
    kind = "channels" if max(shapes.values()) >= _CONVOLUTION else "units"
    return f"{where}{kind} of {inner[0]}"


def _block(module: str) -> str:
    """The repeated block that holds a module, such as ``"model.layers.3"``; empty for one that lies in none."""
    found = re.match(r"(?:[^.]+\.)*?\d+(?=\.)(?:\.blocks?\.\d+(?=\.))?", module)
    return found.group() if found else ""


def _words(block: str) -> str:
    """A block as people say it: ``"layer 3"``, ``"decoder layer 3"``, ``"layer1.0"``."""
    *path, number = block.split(".")
    stack = "".join(f"{part} " for part in path if part in _STACKS)
    if path and path[-1] in _LISTS:
        nested = re.search(r"(\w+)\.(\d+)\.blocks?$", ".".join(path))
        stage = f"stage {nested[2]}, " if nested else ""
        return f"{stack}{stage}{'block' if nested else 'layer'} {number}"
    return ".".join([*path[-1:], number])
