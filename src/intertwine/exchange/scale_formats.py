"""Formats of scale mappings: llm-compressor and NVIDIA Model Optimizer.

Mappings of llm-compressor: AWQ and SmoothQuant, as the YAML and Python that its recipes take.

Its modifiers divide the rows of the smooth layer's weight, and its bias or gain, by ``s``, and multiply the columns of
the balance layers' weights by ``s`` (llm-compressor 0.14, ``modifiers/transform/awq/base.py``): channel ``i`` of one
must be channel ``i`` of the other.

Fusions of NVIDIA Model Optimizer: scales before quantisation that go into the layer in front.

AWQ in Model Optimizer multiplies the inputs of a linear layer by ``pre_quant_scale``. Where another linear layer, or a
norm, writes them, that scale goes into its weights, and nothing is multiplied at run time. Model Optimizer lists such
pairs by the class of the module that holds both (``PQS_FUSE_MODULE_MAPPING`` in modelopt 0.47,
``torch/export/quant_utils.py``); the pairs here have that shape.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..symmetry.proof import Probe
from .exported_model import Proving, Subject
from .result import Mappings, Proof
from .scale_entries import scale_entries
from .scales import ScaleMapping, scaled


def llm_compressor(subject: Subject, proving: Proving) -> Mappings:
    """``AWQModifier`` and ``SmoothQuantModifier``, each before the quantisation that it is usually run with.

    A recipe of two stages, of which a user takes one: ``oneshot(model, recipe="recipe.yaml", stage="awq")``.
    ``SmoothQuantModifier`` smooths norms alone; output layers are not quantised.
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
    """Pairs of linear layers by the class that holds both, and norms with the layers that they write for."""
    found = _proved(subject, proving)
    held: dict[tuple[str, str], dict[str, None]] = {}
    for entry in found.entries:
        for place in entry.places if entry.kind != "norm" else ():
            for name in place.reads:
                above, into, source = _relative(place.writes[0], name)
                held.setdefault((into, source), {})[_class(subject.network, above)] = None
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
        proofs = {
            key: prove_scales(proving.subject, proving.probe, there[key]) for key in scales.entries if key in there
        }
        entries = tuple(replace(entry, proof=proofs.get(key)) for key, entry in scales.entries.items())
    return Mappings("", "", entries, scales.absent, notes=proving.notes)


def prove_scales(subject: Subject, probe: Probe, mappings: Sequence[ScaleMapping], seed: int = 0) -> Proof:
    """Multiply what the mappings write by ``1 / s`` and what they read by ``s``, ``s`` random for every channel.

    The control leaves one tensor out.
    """
    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, Tensor] = {}
    for mapping in mappings:
        space = subject.sym.space(mapping.space)
        shape = [*(subject.sym.space(parent).size for parent in space.parents), space.size]
        logs = torch.randn(shape, generator=generator, dtype=torch.float64) / 2
        for name in dict.fromkeys(use.tensor for use in (*mapping.writes, *mapping.reads)):
            before, c = changed.get(name, probe.tensors[name]), subject.offsets.get(name, 0.0)
            changed[name] = scaled(subject.sym, mapping, name, before + c, logs) - c
    reads = (use.tensor for mapping in mappings for use in mapping.reads)
    proof = probe.prove(changed, ((left, {n: t for n, t in changed.items() if n != left}) for left in reads))
    return Proof(proof.error, proof.control, proof.rtol, subject.described)


def _relative(first: str, second: str) -> tuple[str, str, str]:
    """The module that holds both, and their names in it."""
    a, b, common = first.split("."), second.split("."), 0
    while common < min(len(a), len(b)) - 1 and a[common] == b[common]:
        common += 1
    return ".".join(a[:common]), ".".join(a[common:]), ".".join(b[common:])


def _class(network: nn.Module | None, name: str) -> str:
    """The class of a module; experts are described by the module that holds all of them."""
    if network is None:
        return name
    known = dict(network.named_modules())
    while name not in known:
        name = name.rpartition(".")[0]
    return type(known[name]).__name__
