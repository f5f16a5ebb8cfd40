"""Mappings of llm-compressor: AWQ and SmoothQuant, as the YAML and Python that its recipes take.

Its modifiers divide the rows of the smooth layer's weight, and its bias or gain, by ``s``, and multiply the columns of
the balance layers' weights by ``s`` (llm-compressor 0.14, ``modifiers/transform/awq/base.py``): channel ``i`` of one
must be channel ``i`` of the other.
"""

from collections.abc import Sequence
from typing import Any

from ..result import Entry


def document(entries: Sequence[Entry], outputs: Sequence[str]) -> dict[str, Any]:
    """A recipe of two stages, of which a user takes one: ``oneshot(model, recipe="recipe.yaml", stage="awq")``.

    Args:
        entries: The mappings; ``SmoothQuantModifier`` smooths norms alone.
        outputs: Names of output layers, which are not quantised.

    Returns:
        ``AWQModifier`` and ``SmoothQuantModifier``, each before the quantisation that it is usually run with.
    """
    awq = [{"smooth_layer": e.writes[0], "balance_layers": list(e.reads)} for e in entries]
    smooth = [[list(e.reads), e.writes[0]] for e in entries if e.kind == "norm"]
    stages = (("AWQModifier", awq, "W4A16_ASYM"), ("SmoothQuantModifier", smooth, "W8A8"))
    return {
        f"{name.removesuffix('Modifier').lower()}_stage": {
            "quant_modifiers": {
                name: {"mappings": mappings},
                "QuantizationModifier": {"targets": ["Linear"], "scheme": scheme, "ignore": list(outputs)},
            }
        }
        for name, mappings, scheme in stages
    }


def python(entries: Sequence[Entry]) -> str:
    """The same as Python."""
    lines = ["from llmcompressor.modifiers.transform.awq import AWQMapping", "", "awq_mappings = ["]
    for entry in entries:
        balance = ", ".join(f"r{_quoted(pattern)}" for pattern in entry.reads)
        lines.append(f"    AWQMapping(r{_quoted(entry.writes[0])}, [{balance}]),")
    lines += ["]", "smoothquant_mappings = ["]
    for entry in entries:
        if entry.kind == "norm":
            balance = ", ".join(f"r{_quoted(pattern)}" for pattern in entry.reads)
            lines.append(f"    ([{balance}], r{_quoted(entry.writes[0])}),")
    return "\n".join([*lines, "]", ""])


def _quoted(pattern: str) -> str:
    return f'"{pattern}"'
