"""Layers and blocks by the names of tensors, and which were dropped, repeated or reordered."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor
from torch.nn.functional import normalize

from ..._io.lazy import State
from ..difference import Finding

_LEAST = 1e-30
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def block_of(name: str) -> str:
    """The block of a tensor: its name up to the first number, else its module.

    Examples:
        >>> block_of("model.layers.3.mlp.up_proj.weight"), block_of("lm_head.weight"), block_of("0.bias")
        ('model.layers.3', 'lm_head', '0')
    """
    found = _NUMBER.search(name)
    return name[: found.end()] if found else name.rpartition(".")[0] or name


def family_of(name: str) -> tuple[str, int] | None:
    """The stack of layers that a tensor belongs to, as a prefix of its name, and the number of its layer."""
    found = _NUMBER.search(name)
    return (name[: found.start(1)], int(found.group(1))) if found else None


def layer_of(name: str) -> int | None:
    """The layer number in a name, or ``None``."""
    family = family_of(name)
    return family and family[1]


def stacks(names: Iterable[str]) -> dict[str, dict[int, dict[str, str]]]:
    """Tensor names of every layer: by the prefix of its stack, its number, and the name in layer 0."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        if family := family_of(name):
            found.setdefault(family[0], {}).setdefault(family[1], {})[with_layer(name, 0)] = name
    return found


def with_layer(name: str, number: int | None) -> str:
    """A name with another layer number."""
    found = _NUMBER.search(name)
    return f"{name[: found.start(1)]}{number}{name[found.end(1) :]}" if found and number is not None else name


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


def signature(x: Tensor) -> Tensor:
    """Rows as sorted absolute values, invariant to permutations and sign flips of their entries."""
    return x.float().abs().sort(-1).values


NEW = -1  # in place of a layer number: it holds no earlier layer
_PROBES = 8  # rows of a matrix that are compared
_MATRICES = 4  # matrices of a layer that are compared
_ALIKE = 0.7  # mean cosine of rows in place for layers that share their training
_SAME_VALUES = 1 - 1e-5  # the same for sorted absolute values


def moved_layers(a: State, b: State) -> dict[tuple[str, int], int]:
    """The earlier layer that each later layer (by name prefix and number) holds, if it is another one.

    Names differ only in layer numbers. ``NEW`` marks an inserted layer that pushed others on; layers that hold their
    own earlier content, or nothing known, are left out.
    """
    before, found, strange = stacks(a), dict[tuple[str, int], int](), list[tuple[str, int]]()
    for prefix, layers in stacks(n for n in b if b[n].ndim > 1).items():
        for number, some in layers.items():
            names = list(some.values())[:_MATRICES]
            others = [number, *sorted(before.get(prefix, {}).keys() - {number})]
            source = next((k for k in others if _alike(a, b, names, k)), None)
            if source is None:
                strange.append((prefix, number))
            elif source != number:
                found[prefix, number] = source
    held = {(prefix, source) for (prefix, _), source in found.items()}
    return found | {layer: NEW for layer in strange if layer in held}


def _alike(a: State, b: State, names: list[str], layer: int) -> bool:
    """Whether most matrices of a layer are those of another one, in place or with units permuted."""
    votes = 0
    for name in names:
        other = with_layer(name, layer)
        if other not in a or a[other].shape != b[name].shape:
            return False
        x, y = (t.flatten(1).float() for t in (a[other], b[name]))
        some = slice(None, None, max(1, len(y) // _PROBES))
        alike = float((normalize(x[some], eps=_LEAST) * normalize(y[some], eps=_LEAST)).sum(1).mean())
        if alike <= _ALIKE and x.shape[1] > 2:
            values = (normalize(signature(y[some]), eps=_LEAST) @ normalize(signature(x), eps=_LEAST).mT).amax(1)
            alike = float((values > _SAME_VALUES).double().mean())
        votes += alike > _ALIKE
    return 2 * votes > len(names)


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
