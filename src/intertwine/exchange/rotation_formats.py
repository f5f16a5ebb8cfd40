"""Rotations of SpinQuant and QuaRot: where orthogonal matrices go into the weights, and where only at run time.

R1 turns the residual stream, once the gains of its norms are folded into the layers that read them; R2 turns the values
of every head. R3 turns queries and keys behind their rotary embedding and R4 the inputs of the last layer of an MLP:
what stands before lets no rotation through, so that these are online. ``iw.exchange.rotate`` does R1 and R2.
"""

import re
from collections.abc import Iterable

from ..errors import IntertwineError
from ..symmetry import Fixed
from ..symmetry.description import Description
from .exported_model import Proving, Subject
from .names import expression, unnumbered
from .permutations import carriers
from .result import Absent, Entry, Mappings, Place, Proof
from .rotation import Rotation, rotate
from .scales import Use, scale_mappings

_CONSTANT = "a constant that differs from unit to unit"


def rotations(subject: Subject, proving: Proving) -> Mappings:
    """R1 and R2 with their proofs, and what is online with the reason."""
    notes, entries = list(proving.notes), []
    stream = _tried(proving, stream="random", heads=None)
    if isinstance(stream, Rotation):
        for rotated in stream.rotated:
            if any(space.name == rotated.space for space in subject.sym.spaces):
                uses = [Use(*at, 0) for at in carriers(subject.sym, subject.sym.space(rotated.space))]  # type: ignore[arg-type]
                writes = [u for u in uses if _writes(subject.sym, u)]
                reads = [u for u in uses if u not in writes]
                gains = [u for u in writes if _is_gain(subject.sym, u)]
                entries.append(_entry("R1", subject, [u for u in writes if u not in gains], reads, stream, proving))
    else:
        notes.append(f"R1: {stream}")
    heads = [m for m in scale_mappings(subject.sym)[0] if m.diagonal]
    turned = _tried(proving, stream=None, heads="random") if heads else "no values of heads that mix freely"
    if heads:
        flat = lambda sides: [use for side in sides for use in side]
        writes, reads = flat([m.writes for m in heads]), flat([m.reads for m in heads])
        entries.append(_entry("R2", subject, writes, reads, turned, proving))
    if isinstance(turned, str):
        notes.append(f"R2: {turned}")
    absent = tuple(_online(subject))
    document = {
        "fused": [{"rotation": e.kind, "writes": list(e.writes), "reads": list(e.reads)} for e in entries],
        "online": [{"rotation": a.reason[:2], "before": a.pattern, "why": a.reason[4:]} for a in absent],
    }
    return Mappings("", "", tuple(entries), absent, document, notes=tuple(notes))


def _tried(proving: Proving, **choice: str | None) -> Rotation | str:
    """A random rotation of the network, or why there is none."""
    network = proving.subject.network
    if proving.probe is None or network is None:
        return "nothing can be run"
    try:
        return rotate(network, proving.subject.example, **choice)  # type: ignore[arg-type]
    except (ValueError, IntertwineError) as error:
        return str(error)


def _writes(sym: Description, use: Use) -> bool:
    """Whether a tensor adds to the stream: rows of layers, biases, tables of embeddings."""
    return use.axis == 0 or _is_table(sym, use)


def _is_gain(sym: Description, use: Use) -> bool:
    """Whether a tensor multiplies the stream: it is folded before the stream turns."""
    return len(sym.layouts[use.tensor].axes) == 1 and not use.tensor.endswith("bias")


def _entry(
    kind: str, subject: Subject, writes: list[Use], reads: list[Use], made: Rotation | str, proving: Proving
) -> Entry:
    """One kind of rotation everywhere."""
    proof = None
    if isinstance(made, Rotation):
        proof = Proof(made.proof.error, made.proof.control, made.proof.rtol, proving.subject.described)
    modules = [tuple(dict.fromkeys(use.module for use in side)) for side in (writes, reads)]
    patterns = [tuple(_patterns(names, subject)) for names in modules]
    return Entry(kind, patterns[0], patterns[1], (Place(modules[0], modules[1]),), proof)


def _patterns(names: Iterable[str], subject: Subject) -> list[str]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(unnumbered(name), []).append(name)
    return [expression(group, [*subject.names, *group]) for group in grouped.values()]


def _online(subject: Subject) -> list[Absent]:
    """Layers whose inputs cannot be turned in the weights, and the outputs that another output meets."""
    found: dict[tuple[str, str], list[str]] = {}
    heads = {parent for space in subject.sym.spaces for parent in space.parents}
    for space in subject.sym.spaces:
        why = next((r.partition(": ")[2] for r in space.reasons if "no linear maps" in r), "")
        uses = [Use(*at, 0) for at in carriers(subject.sym, space)]  # type: ignore[arg-type]
        if not why or space.name in heads or any(_is_table(subject.sym, use) for use in uses):
            continue
        why = why.replace(_CONSTANT, f"{_CONSTANT} (a rotary embedding)")
        reads = [use.module for use in uses if not _writes(subject.sym, use)]
        kind = "R4" if reads else "R3"
        for module in dict.fromkeys(reads or [use.module for use in uses]):
            key = unnumbered(module), f"{kind}: {re.sub(r'[.][0-9]+', '.#', why)} lets no rotation through"
            found.setdefault(key, []).append(module)
    return [Absent(tuple(m), expression(m, [*subject.names, *m]), why) for (_, why), m in found.items()]


def _is_table(sym: Description, use: Use) -> bool:
    """Whether a tensor is a table of embeddings, whose space is the stream."""
    first, *others = sym.layouts[use.tensor].axes
    return bool(others) and isinstance(first, Fixed) and first.reason == "vocabulary"
