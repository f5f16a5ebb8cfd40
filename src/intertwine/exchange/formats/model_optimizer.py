"""Fusions of NVIDIA Model Optimizer: scales before quantisation that go into the layer in front.

AWQ in Model Optimizer multiplies the inputs of a linear layer by ``pre_quant_scale``. Where another linear layer, or a
norm, writes them, that scale goes into its weights, and nothing is multiplied at run time. Model Optimizer lists such
pairs by the class of the module that holds both (``PQS_FUSE_MODULE_MAPPING`` in modelopt 0.47,
``torch/export/quant_utils.py``); the pairs here have that shape.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..result import Entry


def document(entries: Sequence[Entry], network: nn.Module | None) -> dict[str, Any]:
    """Pairs of linear layers by the class that holds both, and norms with the layers that they write for."""
    held: dict[tuple[str, str], dict[str, None]] = {}
    norms = []
    for entry in entries:
        if entry.kind == "norm":
            norms.append({"norm": entry.writes[0], "linears": list(entry.reads)})
            continue
        for place in entry.places:
            for name in place.reads:
                above, into, source = _relative(place.writes[0], name)
                held.setdefault((into, source), {})[_class(network, above)] = None
    linears = [
        {"modules": list(classes), "fuse_into": into, "pre_quant_scale_of": source}
        for (into, source), classes in held.items()
    ]
    return {"linears": linears, "norms": norms}


def python(found: dict[str, Any]) -> str:
    """The pairs in the shape of ``PQS_FUSE_MODULE_MAPPING``."""
    lines = ["PQS_FUSE_MODULE_MAPPING = ["]
    for pair in found["linears"]:
        lines.append(f"    ({pair['modules']!r}, ({pair['fuse_into']!r}, {pair['pre_quant_scale_of']!r})),")
    return "\n".join([*lines, "]", ""])


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
