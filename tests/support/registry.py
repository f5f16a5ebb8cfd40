"""Tables of llm-compressor against the mappings found, class by class: the table in the docs is written by this file.

``python tests/support/registry.py`` writes ``docs/guide/mappings-registry.md`` anew.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch

import intertwine as iw

ROOT = Path(__file__).parents[2]
DATA = json.loads((ROOT / "tests/exchange/llm_compressor_tables.json").read_text())
PAGE = ROOT / "docs/guide/mappings-registry.md"

# Classes of the tables that transformers 5 does not have: their code is in repositories.
NOT_IN_TRANSFORMERS = {
    "NanbeigeForCausalLM", "Phi3VForCausalLM", "Qwen2_5OmniModel", "ChatGLMForConditionalGeneration",
}  # fmt: skip
TOWERS = {
    "Cohere2VisionForConditionalGeneration", "Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration",
    "Mistral3ForConditionalGeneration", "MuseGlimmerForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
OWN = {
    "DeepseekV3ForCausalLM": {"head_dim": 4},
    "Qwen2_5OmniThinkerForConditionalGeneration": {"rope_parameters": ROPE},
    "Qwen2_5_VLForConditionalGeneration": {"rope_parameters": ROPE},
}

Pair = tuple[str, frozenset[str]]


def listed() -> list[str]:
    """Classes of both registries that transformers has."""
    return [name for name in dict.fromkeys((*DATA["awq"], *DATA["smoothquant"])) if name not in NOT_IN_TRANSFORMERS]


def resolved(table: list, names: Iterable[str]) -> set[Pair]:
    """Names of modules that a table means, grouped as ``match_modules_set`` of compressed-tensors 0.20 does."""
    found = set()
    for smooth, balance in table:
        found |= {(s, frozenset(b)) for group in _groups([smooth, *balance], names) for s, b in _split(group)}
    return found


def _split(group):
    smooth, *balance = group
    if len(smooth) == 1:
        yield smooth[0], [name for names in balance for name in names]


def _groups(targets, names):
    matched, context, unmatched = {t: [] for t in targets}, None, set(targets)
    for name in names:
        for target in targets:
            if not re.match(target.removeprefix("re:"), name):
                continue
            new = _ancestor(name, context)
            if not unmatched and new != context:
                yield list(matched.values())
                matched, unmatched, new = {t: [] for t in targets}, set(targets), name
            matched[target].append(name)
            context = new
            unmatched -= {target}
    if not unmatched:
        yield list(matched.values())


def _ancestor(name, context):
    if context is None:
        return name
    a, b = name.split("."), context.split(".")
    common = []
    for x, y in zip(a, b):
        if x != y:
            break
        common.append(x)
    return ".".join(common)


def found_in(name: str):
    """The mappings found in a tiny network of a class, and the names of its modules."""
    from quantised_models import text, whisper, with_towers

    from intertwine.exchange.subject import subject_of

    torch.manual_seed(0)
    make = whisper if name.startswith("Whisper") else with_towers if name in TOWERS else text
    model, inputs = make(name, **OWN.get(name, {}))
    sym = iw.symmetries(model, inputs)
    return sym.mappings(), subject_of(sym).names


def pairs(entries) -> set[Pair]:
    """The entries place by place."""
    return {(place.writes[0], frozenset(place.reads)) for entry in entries for place in entry.places}


def outlined(found: set[Pair]) -> list[str]:
    """Pairs without the numbers of layers and experts, in words."""
    short = lambda name: ".".join(p for p in name.split(".")[-2:] if not p.isdigit())
    said = {f"{short(s)} → {', '.join(dict.fromkeys(short(b) for b in sorted(balance)))}" for s, balance in found}
    return sorted(said)
