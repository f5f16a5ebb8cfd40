"""Layers and blocks in the names of tensors."""

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def block_of(name: str) -> str:
    """The block that a tensor belongs to: its name up to the first number, else its module.

    Examples:
        >>> block_of("model.layers.3.mlp.up_proj.weight"), block_of("lm_head.weight"), block_of("0.bias")
        ('model.layers.3', 'lm_head', '0')
    """
    found = _NUMBER.search(name)
    return name[: found.end()] if found else name.rpartition(".")[0] or name


def layer_of(name: str) -> int | None:
    """The number of the layer in a name, or ``None``."""
    found = _NUMBER.search(name)
    return int(found.group(1)) if found else None


def stem_of(name: str) -> str:
    """The name without its last word, which a weight and its bias share.

    Examples:
        >>> stem_of("h.0.mlp.weight"), stem_of("attn.in_proj_bias")
        ('h.0.mlp.', 'attn.in_proj_')
    """
    return re.sub(r"[A-Za-z0-9]+$", "", name)


def family_of(name: str) -> tuple[str, int] | None:
    """The stack of layers that a tensor belongs to, by the beginning of its name, and the number of its layer."""
    found = _NUMBER.search(name)
    return (name[: found.start(1)], int(found.group(1))) if found else None


def with_layer(name: str, number: int | None) -> str:
    """A name with another number of the layer."""
    found = _NUMBER.search(name)
    return f"{name[: found.start(1)]}{number}{name[found.end(1) :]}" if found and number is not None else name


def pattern_of(name: str) -> str:
    """The name with numbers left out, the same for every layer.

    Examples:
        >>> pattern_of("h.11.attn.weight[0]")
        'h.#.attn.weight[0]'
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "#", name)


def runs(blocks: Sequence[str]) -> list[str]:
    """Blocks, those whose numbers follow each other joined.

    Examples:
        >>> runs(["embed", "layers.0", "layers.1", "layers.3"])
        ['embed', 'layers.0 to 1', 'layers.3']
    """
    found: list[list[str]] = []
    for block in blocks:
        head, _, last = block.rpartition(".")
        if found and last.isdigit():
            before, _, previous = found[-1][-1].rpartition(".")
            if before == head and previous.isdigit() and int(last) == int(previous) + 1:
                found[-1].append(block)
                continue
        found.append([block])
    return [run[0] if len(run) == 1 else f"{run[0]} to {run[-1].rpartition('.')[2]}" for run in found]
