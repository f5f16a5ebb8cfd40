"""Formats of scale mappings: llm-compressor and NVIDIA Model Optimizer.

Mappings of llm-compressor: AWQ and SmoothQuant, in the YAML and Python form of its recipes.

Its modifiers divide the rows of the smooth layer's weight, and its bias or gain, by ``s``, and multiply the columns of
the balance layers' weights by ``s`` (llm-compressor 0.14, ``modifiers/transform/awq/base.py``): channel ``i`` of one
must be channel ``i`` of the other.

Fusions of NVIDIA Model Optimizer: scales before quantisation that are folded into the preceding layer.

AWQ in Model Optimizer multiplies the inputs of a linear layer by ``pre_quant_scale``. If another linear layer or a norm
writes them, that scale goes into its weights, and nothing is multiplied at run time. Model Optimizer lists such pairs
by the class of the module that holds both (``PQS_FUSE_MODULE_MAPPING`` in modelopt 0.47,
``torch/export/quant_utils.py``); the pairs here have that form.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._words import beginning, counted
from ..symmetry import Fixed, Leaf
from ..symmetry.description import Description, is_stream
from ..symmetry.proof import Probe
from ..symmetry.spaces import UNREAD, leaves
from .exported_model import Proving, Subject
from .names import expression, outline, packed, unnumbered, unpacked
from .result import Absent, Entry, Mappings, Place, Proof
from .scales import ScaleMapping, Use, channels, scale_mappings, scaled

_AFTER = "norms read these channels together, as where they stand after the addition, which lets no such scale through"
_OUTPUT = "the output layer, which quantisation recipes leave as it is"
_OFFSET = "the gain is {c:g} + weight, and {c:g} + weight is what is scaled: llm-compressor converts such norms"


def llm_compressor(subject: Subject, proving: Proving) -> Mappings:
    """Mappings for ``AWQModifier`` and ``SmoothQuantModifier``, each before the quantisation it is usually run with.

    The recipe has two stages, of which a user runs one: ``oneshot(model, recipe="recipe.yaml", stage="awq")``.
    ``SmoothQuantModifier`` smooths only norms; output layers are not quantised.
    """
    found = _proved(subject, proving)
    awq = [{"smooth_layer": e.writes[0], "balance_layers": list(e.reads)} for e in found.entries]
    smooth = [[list(e.reads), e.writes[0]] for e in found.entries if e.kind == "norm"]
    stages = (("AWQModifier", awq, "W4A16_ASYM"), ("SmoothQuantModifier", smooth, "W8A8"))
    document = {
        f"{name.removesuffix('Modifier').lower()}_stage": {
            "quant_modifiers": {
                name: {"mappings": mappings},
                "QuantizationModifier": {"targets": ["Linear"], "scheme": scheme, "ignore": sorted(subject.last)},
            }
        }
        for name, mappings, scheme in stages
    }
    quoted = [(f'r"{e.writes[0]}"', ", ".join(f'r"{read}"' for read in e.reads), e.kind) for e in found.entries]
    lines = ["from llmcompressor.modifiers.transform.awq import AWQMapping", "", "awq_mappings = ["]
    lines += [f"    AWQMapping({smooth}, [{balance}])," for smooth, balance, _ in quoted]
    lines += ["]", "smoothquant_mappings = ["]
    lines += [f"    ([{balance}], {smooth})," for smooth, balance, kind in quoted if kind == "norm"]
    return replace(found, document=document, python="\n".join([*lines, "]", ""]))


def model_optimizer(subject: Subject, proving: Proving) -> Mappings:
    """Mappings as pairs of linear layers, by the class that holds both, and norms with the layers that read them."""
    found = _proved(subject, proving)
    held: dict[tuple[str, str], dict[str, None]] = {}
    for entry in found.entries:
        for place in entry.places if entry.kind != "norm" else ():
            for name in place.reads:
                a, b = place.writes[0].split("."), name.split(".")
                common = len(beginning(a[:-1], b[:-1]))  # name parts of the module that holds both
                inner = ".".join(a[common:]), ".".join(b[common:])
                held.setdefault(inner, {})[_class(subject.network, ".".join(a[:common]))] = None
    linears = [
        {"modules": list(classes), "fuse_into": into, "pre_quant_scale_of": source}
        for (into, source), classes in held.items()
    ]
    norms = [{"norm": e.writes[0], "linears": list(e.reads)} for e in found.entries if e.kind == "norm"]
    pairs = [f"    ({p['modules']!r}, ({p['fuse_into']!r}, {p['pre_quant_scale_of']!r}))," for p in linears]
    python = "\n".join(["PQS_FUSE_MODULE_MAPPING = [", *pairs, "]", ""])
    return replace(found, document={"linears": linears, "norms": norms}, python=python)


def _proved(subject: Subject, proving: Proving) -> Mappings:
    """Entries of scale mappings with their proofs."""
    scales = scale_entries(subject)
    entries = tuple(scales.entries.values())
    if proving.probe is not None:
        there = scales.mappings if proving.subject is subject else scale_entries(proving.subject).mappings
        proofs = {k: prove_scales(proving.subject, proving.probe, there[k]) for k in scales.entries if k in there}
        entries = tuple(replace(entry, proof=proofs.get(key)) for key, entry in scales.entries.items())
    return Mappings("", "", entries, scales.absent, notes=proving.notes)


def prove_scales(subject: Subject, probe: Probe, mappings: Sequence[ScaleMapping]) -> Proof:
    """The proof with random ``s`` per channel: writes times ``1 / s``, reads times ``s``; a control omits one."""
    generator = torch.Generator().manual_seed(0)
    changed: dict[str, Tensor] = {}
    for mapping in mappings:
        shape = subject.sym.unit_shape(subject.sym.space(mapping.space))
        logs = torch.randn(shape, generator=generator, dtype=torch.float64) / 2
        for name in dict.fromkeys(use.tensor for use in (*mapping.writes, *mapping.reads)):
            before, c = changed.get(name, probe.tensors[name]), subject.offsets.get(name, 0.0)
            changed[name] = scaled(subject.sym, mapping, name, before + c, logs) - c
    reads = (use.tensor for mapping in mappings for use in mapping.reads)
    proof = probe.prove(changed, ((left, {n: t for n, t in changed.items() if n != left}) for left in reads))
    return Proof(proof.error, proof.control, proof.rtol, subject.described)


def _class(network: nn.Module | None, name: str) -> str:
    """The class of a module; experts are described by the module that holds all of them."""
    if network is None:
        return name
    known = dict(network.named_modules())
    while name not in known:
        name = name.rpartition(".")[0]
    return type(known[name]).__name__


class ScaleEntries(NamedTuple):
    """Entries and the mappings that each represents, by outline (names without layer numbers)."""

    mappings: Mapping[tuple[str, ...], list[ScaleMapping]]  # The mappings in every layer
    entries: Mapping[tuple[str, ...], Entry]
    absent: tuple[Absent, ...]  # Readers of channels that no entry scales, and why


def scale_entries(subject: Subject) -> ScaleEntries:
    """Mappings that a tool that scales whole layers can apply, and the reasons against all others."""
    sym = subject.sym
    found, refused = scale_mappings(sym)
    grouped: dict[tuple[str, ...], list[ScaleMapping]] = {}
    places: dict[tuple[str, ...], list[Place]] = {}
    reasons: dict[str, str] = {}
    for reads, reason in refused:
        reasons.update(dict.fromkeys(reads, reason))
    for mapping in found:
        why = _unfit(subject, mapping)
        if why:
            reasons.update({use.tensor: why for use in mapping.reads})
            continue
        for place in _places(sym, mapping):
            key = outline(place.writes[0], place.reads)
            places.setdefault(key, []).append(place)
            if mapping not in grouped.setdefault(key, []):
                grouped[key].append(mapping)
    entries = {key: _entry(subject, key, group, places[key]) for key, group in grouped.items()}
    covered = {use.tensor for group in grouped.values() for m in group for use in m.reads}
    return ScaleEntries(grouped, entries, tuple(_absent(subject, covered, reasons)))


def _entry(subject: Subject, key: tuple[str, ...], found: list[ScaleMapping], places: list[Place]) -> Entry:
    """One mapping in all of its layers."""
    parts: dict[str, set[str]] = {pattern: set() for pattern in key[1:]}
    exact = {pattern: re.compile(re.escape(pattern).replace(r"\#", r"\d+")) for pattern in parts}
    for name in (name for place in places for name in place.reads):
        parts[next(p for p, e in exact.items() if e.fullmatch(name))].add(name)
    reads = tuple(expression(targets, subject.names) for targets in parts.values())
    writes = (expression({place.writes[0] for place in places}, subject.names),)
    norm = all(len(subject.sym.layouts[use.tensor].axes) == 1 for use in found[0].writes)
    notes = [_shared(subject.sym, found[0])]
    notes += [_OFFSET.format(c=c) for use in found[0].writes if (c := subject.offsets.get(use.tensor)) is not None]
    return Entry("norm" if norm else "linear", writes, reads, tuple(places), note="; ".join(filter(None, notes)))


def _places(sym: Description, mapping: ScaleMapping) -> list[Place]:
    """Names of the modules: one place, or one for each expert where experts write."""
    if not packed(mapping.writes[0].tensor):
        reads: list[str] = []
        for name in mapping.balance:
            reads += [part for parts in unpacked(sym, name) for part in parts] if packed(name) else [name]
        return [Place((mapping.smooth,), tuple(reads), mapping.space)]
    rows = (channels(sym, mapping, mapping.writes[0]) >= 0).nonzero().flatten()
    writers = unpacked(sym, mapping.smooth, "gate" if int(rows[0]) == 0 else "up")
    readers = zip(*(unpacked(sym, name) for name in mapping.balance))
    return [
        Place(write, tuple(name for part in read for name in part), mapping.space)
        for write, read in zip(writers, readers)
    ]


def _unfit(subject: Subject, mapping: ScaleMapping) -> str:
    """The reason why a tool that scales whole layers in order cannot apply a mapping; empty if it can."""
    sym = subject.sym
    if any(use.module in subject.last for use in mapping.reads):
        return _OUTPUT
    if any(use.axis != len(sym.layouts[use.tensor].axes) - 1 for use in mapping.reads if not packed(use.tensor)):
        return "its weight holds inputs before outputs (Conv1D of transformers), and these tools scale the last axis"
    if any(use.tensor.rpartition(".")[2] not in ("weight", "bias") for use in mapping.writes if not packed(use.tensor)):
        return f"{mapping.writes[0].tensor} is not the weight of a layer"
    orders = [channels(sym, mapping, use) for use in mapping.reads]
    if not all(bool((order >= 0).all()) for order in orders):
        return "only some of its inputs can be scaled"
    return next(filter(None, (_disorder(sym, mapping, use, orders) for use in mapping.writes)), "")


def _disorder(sym: Description, mapping: ScaleMapping, use: Use, reads: list[Tensor]) -> str:
    """The problem with the order of the written channels; empty if they are the last rows, one for each scale."""
    order = channels(sym, mapping, use)
    rows = (order >= 0).nonzero().flatten()
    if not packed(use.tensor) and not torch.equal(rows, torch.arange(len(order) - len(rows), len(order))):
        return f"what may be scaled is not the last rows of {use.tensor}"
    if not torch.equal(order[rows], torch.arange(len(rows))):
        return f"the channels of {use.tensor} lie in another order"
    if not all(int(other.max()) == len(rows) - 1 for other in reads):
        return "written and read channels differ in number"
    return ""


def _shared(sym: Description, mapping: ScaleMapping) -> str:
    """A remark on inputs that share a scale."""
    sizes = {len(order := channels(sym, mapping, use)) // (int(order.max()) + 1) for use in mapping.reads}
    if sizes == {1}:
        return ""
    return (
        f"each scale is shared by {counted(max(sizes), 'input')} of the balance layer (grouped heads); tools that ask "
        "for one scale for each input skip it"
    )


def _absent(subject: Subject, covered: set[str], reasons: Mapping[str, str]) -> Iterator[Absent]:
    """Weights that read channels which no entry scales, generalised over layers."""
    sym, found = subject.sym, dict[tuple[str, str], list[str]]()
    for name, layout in sym.layouts.items():
        if name in covered or len(layout.axes) < 2:
            continue
        first = layout.axes[0]
        if isinstance(first, Fixed) and first.reason == "vocabulary":  # looked up, by words
            continue
        why = reasons.get(name) or _restriction(sym, name)
        module = name.rpartition(".")[0] if name.endswith(".weight") else name
        kind = "" if why == UNREAD else unnumbered(module)
        found.setdefault((kind, re.sub(r"\.\d+\b", ".#", why)), []).append(module)
    for (kind, why), modules in found.items():
        pattern = expression(modules, [*subject.names, *modules]) if kind else "modules that the example does not run"
        yield Absent(tuple(modules), pattern, why if kind else "give an example that reads them")


def _input_axis(sym: Description, name: str) -> int:
    """The axis along which a weight reads: the last, or the first if its module returns the last."""
    axes, returned = sym.layouts[name].axes, sym.features.get(name.rpartition(".")[0])
    carried = [{leaf.space for _, leaf in leaves(axis) if isinstance(leaf, Leaf)} for axis in axes]
    if returned is None or len(axes) != 2 or not carried[1]:
        return len(axes) - 1
    written = {leaf.space for _, leaf in leaves(returned.axes[-1]) if isinstance(leaf, Leaf)}
    return 0 if carried[1] <= written and not carried[0] <= written else 1


def _restriction(sym: Description, name: str) -> str:
    """The reason why the last axis that carries a space cannot be scaled."""
    said: list[str] = []
    for _, leaf in leaves(sym.layouts[name].axes[_input_axis(sym, name)]):
        if not isinstance(leaf, Leaf):
            said.append(leaf.reason)
        else:
            space, stream = sym.space(leaf.space), is_stream(sym.carriers[leaf.space])
            for lost in space.causes("no scales", "fewer scales") or space.restrictions[:1]:
                after = stream and lost.kind == "epsilon"
                said.append(_AFTER if after else f"{lost.cause} lets no such scale through")
    return "; ".join(dict.fromkeys(said)) or "its inputs are written by nothing that may be scaled"
