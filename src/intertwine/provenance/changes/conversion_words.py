"""Conversions of names and layouts in words, layers that share one said together."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..._words import counted
from ..difference import Finding
from .conversion_search import Conversion
from .layers import pattern_of
from .row_orders import Rows, head_sizes, rotary_part, view

_NAMED = 3
_KINDS = {
    "transposed": "transposed: (inputs, outputs) instead of (outputs, inputs) or back, as Conv1D has it",
    "fused": "made of several tensors",
    "split": "parts of one tensor before: split",
    "reshaped": "of another shape with the same entries",
    "rotary": "permuted as rotary conversion does",
    "repeated": "the same rows several times: heads that shared keys and values have their own",
    "untied": "a copy of a tensor that another name has too: untied",
}
_TURNED = {
    "split": ("fused", "parts of one tensor now: fused"),
    "untied": ("tied", "one tensor with another now: tied"),
}


def conversion_findings(
    done: Conversion, target: Mapping[str, Tensor], source: Mapping[str, Tensor], turned: bool
) -> list[Finding]:
    """What was done to names and layouts."""
    grouped: dict[str, list[str]] = {}
    uses = {name: 1 for name in target if name in source and name not in done.found}
    for rows in done.found.values():
        for name in {v.name for v in rows.views}:
            uses[name] = uses.get(name, 0) + 1
    for name, rows in done.found.items():
        for kind in _kinds(rows, source, uses):
            grouped.setdefault(kind, []).append(name)
    renamed = [n for n, rows in done.found.items() if tuple(v.name for v in rows.views) != (n,)]
    found = []
    if renamed:
        shown = "; ".join(_examples(done, renamed, "is now" if turned else "was"))
        found.append(
            Finding("renamed", f"{counted(len(renamed), 'tensor')} under other names: {shown}", tuple(renamed))
        )
    for kind, names in grouped.items():
        words = _KINDS[kind]
        if kind == "rotary":
            words = _rotary(done, names, source, turned)
        if kind == "fused":
            words = f"{'split into' if turned else 'fused from'} {_fused(done, names)}"
        if turned:
            kind, words = _TURNED.get(kind, (kind, words))
            kind = "split" if words.startswith("split") else kind
        roles = tuple(dict.fromkeys(pattern_of(n) for n in names))
        shown = ", ".join(roles[:_NAMED]) + (", ..." if len(roles) > _NAMED else "")
        found.append(Finding(kind, f"{counted(len(names), 'tensor')} {words} ({shown})", tuple(names)))
    return found


def source_words(rows: Rows) -> str:
    """Where a tensor comes from, in a few words."""
    names = " + ".join(v.name for v in rows.views)
    turned = (rows.how == "columns") != (rows.views[0].how == "columns")
    return names + (", transposed" if turned else "") + (", rows reordered" if rows.order is not None else "")


def rotary_words(head: int, pairs: bool) -> str:
    """The direction of a rotary conversion."""
    way = "from halves to interleaved pairs" if pairs else "from interleaved pairs to halves"
    return f"permuted as rotary conversion does, {way} of heads of {head} dimensions"


def _kinds(rows: Rows, source: Mapping[str, Tensor], uses: Mapping[str, int]) -> Iterator[str]:
    """What was done to one tensor."""
    if len(rows.views) > 1:
        yield "fused"
    elif uses[rows.views[0].name] > 1:
        yield "split" if rows.order is not None or rows.views[0].how == "whole" else "untied"
    first = source[rows.views[0].name]
    if rows.order is not None and len(rows.order) > len(first):
        yield "repeated"
        return
    if rows.views[0].how != "whole":
        if (rows.how == "columns") != (rows.views[0].how == "columns"):
            yield "transposed"
        elif (
            len(rows.views) == 1
            and rows.order is None
            and first.squeeze().ndim != len([n for n in rows.shape if n > 1])
        ):
            yield "reshaped"
    if rows.order is not None and len(rows.shape) > 1:
        parts = _parts(rows, source)
        if any(rotary_part(p) is not None for p in parts):
            yield "rotary"


def _parts(rows: Rows, source: Mapping[str, Tensor]) -> list[Tensor]:
    """The order of rows within each source, for the sources whose rows are complete."""
    if rows.order is None:
        return []
    found, start = [], 0
    for v in rows.views:
        count = view(source[v.name], v.how).shape[0] if v.how != "whole" else source[v.name].numel()
        inside = rows.order[(rows.order >= start) & (rows.order < start + count)] - start
        if len(inside):
            found.append(inside - inside.min() if len(rows.views) == 1 else inside)
        start += count
    return found


def _rotary(done: Conversion, names: list[str], source: Mapping[str, Tensor], turned: bool) -> str:
    for name in names:
        for part in _parts(done.found[name], source):
            found = rotary_part(part)
            if found is not None:
                return rotary_words(found[0], found[1] != turned)
    return _KINDS["rotary"]


def _fused(done: Conversion, names: list[str]) -> str:
    """Of what, and how rows of several tensors lie: one tensor after the other, or head by head."""
    rows = next((done.found[n] for n in names if len(done.found[n].shape) > 1), done.found[names[0]])
    last = " + ".join(v.name.removesuffix(".weight").rpartition(".")[2] for v in rows.views)
    if rows.order is None:
        return f"{len(rows.views)} each, one after the other: {last}"
    parts = len(rows.views)
    order = rows.order
    for head in head_sizes(len(order) // parts):
        heads = torch.arange(len(order)).reshape(parts, -1, head).transpose(0, 1).flatten()
        if len(heads) == len(order) and bool((order == heads).all()):
            return f"{parts} each, head by head ({head} rows at a time): {last}"
    return f"{parts} each: {last}"


def _examples(done: Conversion, names: list[str], verb: str) -> list[str]:
    """A few pairs of names, layers left out."""
    pairs = dict.fromkeys(
        (pattern_of(n), " + ".join(dict.fromkeys(pattern_of(v.name) for v in done.found[n].views))) for n in names
    )
    shown = [f"{new} {verb} {old}" for new, old in pairs if new != old][:_NAMED]
    return [*shown, *(["..."] if len(pairs) > _NAMED else [])]
