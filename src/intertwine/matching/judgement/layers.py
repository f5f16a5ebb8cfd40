"""Layers by the names of tensors, and which of one network are which of another."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.nn.functional import normalize

from ..._io.lazy import LazyState, State

NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
OTHER = " of the other"  # suffix for tensors of a layer without a place in the other network
_LEAST = 1e-30


def family_of(name: str) -> tuple[str, int] | None:
    """The stack of layers that a tensor belongs to, as a prefix of its name, and the number of its layer."""
    found = NUMBER.search(name)
    return (name[: found.start(1)], int(found.group(1))) if found else None


def stacks(names: Iterable[str]) -> dict[str, dict[int, dict[str, str]]]:
    """Tensor names of every layer: by the prefix of its stack, its number, and the name in layer 0."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        if family := family_of(name):
            found.setdefault(family[0], {}).setdefault(family[1], {})[with_layer(name, 0)] = name
    return found


def with_layer(name: str, number: int | None) -> str:
    """A name with another layer number."""
    found = NUMBER.search(name)
    return f"{name[: found.start(1)]}{number}{name[found.end(1) :]}" if found and number is not None else name


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


def renumbered(source: State, target: State, layers: Mapping[tuple[str, int], int]) -> State:
    """The source under the target's layer numbers; layers without a place there keep their names."""
    names = {}
    for name in target:
        family = family_of(name)
        other = name if family is None else with_layer(name, layers.get(family, family[1]))
        if other in source:
            names[name] = other
    taken = {*names.values()}
    names |= {n if n not in names else f"{n}{OTHER}": n for n in source if n not in taken}
    return LazyState.renamed(source, names)
