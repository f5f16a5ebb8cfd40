"""Layers and blocks by the names of tensors, and findings on dropped, repeated or reordered ones."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...matching.judgement.layers import NEW, NUMBER, family_of, stacks
from ..difference import Finding


def block_of(name: str) -> str:
    """The block of a tensor: its name up to the first number, else its module.

    Examples:
        >>> block_of("model.layers.3.mlp.up_proj.weight"), block_of("lm_head.weight"), block_of("0.bias")
        ('model.layers.3', 'lm_head', '0')
    """
    found = NUMBER.search(name)
    return name[: found.end()] if found else name.rpartition(".")[0] or name


def layer_of(name: str) -> int | None:
    """The layer number in a name, or ``None``."""
    family = family_of(name)
    return family and family[1]


def pattern_of(name: str) -> str:
    """The name without numbers, the same for every layer.

    Examples:
        >>> pattern_of("h.11.attn.weight[0]")
        'h.#.attn.weight[0]'
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "#", name)


def stem_of(name: str) -> str:
    """The name without its last word, shared by a weight and its bias.

    Examples:
        >>> stem_of("h.0.mlp.weight"), stem_of("attn.in_proj_bias")
        ('h.0.mlp.', 'attn.in_proj_')
    """
    return re.sub(r"[A-Za-z0-9]+$", "", name)


def runs(blocks: Sequence[str]) -> list[str]:
    """Blocks, with consecutive numbers joined into ranges.

    Examples:
        >>> runs(["embed", "layers.0", "layers.1", "layers.3"])
        ['embed', 'layers.0 to 1', 'layers.3']
    """
    found: list[list[str]] = []
    for block in blocks:
        head, _, last = block.rpartition(".")
        if found and last.isdigit() and found[-1][-1] == f"{head}.{int(last) - 1}".removeprefix("." * (not head)):
            found[-1].append(block)
        else:
            found.append([block])
    return [run[0] if len(run) == 1 else f"{run[0]} to {run[-1].rpartition('.')[2]}" for run in found]


def layer_findings(found: Mapping[tuple[str, int], int], a: Iterable[str], b: Iterable[str]) -> Iterator[Finding]:
    """Findings on dropped, inserted, repeated or reordered layers, from moved layers and all names."""
    sides = stacks(a), stacks(b)
    for prefix in dict.fromkeys(start for start, _ in found):
        before, after = (1 + max(side[prefix]) for side in sides)
        sources = [found.get((prefix, k), k) for k in range(after)]
        dropped = [k for k in range(before) if k not in sources]
        inserted = [n for n in range(after) if sources[n] == NEW]
        once = [k for k in dict.fromkeys(sources) if k != NEW]
        repeated = {k: [n for n in range(after) if sources[n] == k] for k in once if sources.count(k) > 1}
        if dropped:
            yield Finding("layers dropped", f"{_layers(dropped)} of {before} dropped; {after} are left")
        if inserted:
            yield Finding("layers inserted", f"{_layers(inserted)} inserted; those after it follow")
        if repeated:
            where = "; ".join(f"layer {k} now stands at {', '.join(map(str, n))}" for k, n in repeated.items())
            yield Finding("layers repeated", f"{_layers(list(repeated))} repeated: {where}")
        if once != sorted(once):
            yield Finding("layers reordered", f"layers in another order: {', '.join(map(str, sources))}")


def _layers(numbers: list[int]) -> str:
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
