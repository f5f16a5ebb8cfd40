"""Tables of llm-compressor against the mappings found, class by class; this file writes the table in the docs.

``python tests/support/registry.py`` writes ``docs/guide/mappings-registry.md`` anew.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch

import intertwine as iw
from intertwine.exchange.exported_model import Proving, Subject, subject_of
from intertwine.exchange.names import packed
from intertwine.symmetry.proof import Probe

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
    "Qwen3NextForCausalLM": {"num_hidden_layers": 1},
    "Qwen2_5OmniThinkerForConditionalGeneration": {"rope_parameters": ROPE},
    "Qwen2_5_VLForConditionalGeneration": {"rope_parameters": ROPE},
}

UNLISTED = (
    "OPTForCausalLM", "GPTNeoXForCausalLM", "GPTJForCausalLM", "PhiForCausalLM", "StableLmForCausalLM",
    "Starcoder2ForCausalLM", "GemmaForCausalLM", "GlmForCausalLM", "Glm4ForCausalLM", "NemotronForCausalLM",
    "PersimmonForCausalLM", "Olmo2ForCausalLM", "OlmoeForCausalLM", "SmolLM3ForCausalLM", "HeliumForCausalLM",
    "GraniteMoeForCausalLM", "PhimoeForCausalLM", "MptForCausalLM", "XGLMForCausalLM", "BioGptForCausalLM",
    "GPTBigCodeForCausalLM", "ArceeForCausalLM", "ApertusForCausalLM", "BitNetForCausalLM", "FalconForCausalLM",
    "Ernie4_5ForCausalLM", "HunYuanDenseV1ForCausalLM", "Lfm2ForCausalLM", "Qwen3NextForCausalLM",
)  # fmt: skip

Pair = tuple[str, frozenset[str]]


def listed() -> list[str]:
    """Classes of both registries that exist in transformers."""
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


def made(name: str):
    """A tiny network of a class, and an example."""
    from quantised_models import text, whisper, with_towers

    torch.manual_seed(0)
    make = whisper if name.startswith("Whisper") else with_towers if name in TOWERS else text
    return make(name, **OWN.get(name, {}))


def pairs(entries) -> set[Pair]:
    """The entries, paired place by place."""
    return {(place.writes[0], frozenset(place.reads)) for entry in entries for place in entry.places}


def outlined(pair: Pair) -> str:
    """A pair without the numbers of layers and experts."""
    short = lambda name: ".".join(p for p in name.split(".")[-3:] if not p.isdigit()).removeprefix("layers.")
    return f"{short(pair[0])} -> {', '.join(dict.fromkeys(short(b) for b in sorted(pair[1])))}"


class Tool:
    """What llm-compressor's modifiers do to weights, on a float64 copy of a network, module by module."""

    def __init__(self, subject: Subject, probe: Probe) -> None:
        self._probe, self._offsets = probe, subject.offsets
        self._unread = set(subject.sym.unread)
        self._packed = {name for name in subject.sym.layouts if packed(name) == name}

    def _tensor(self, module: str):
        """Name of the tensor that is a module's weight, where in it, and whether inputs are its first axis."""
        if f"{module}.weight" in self._probe.tensors:
            return f"{module}.weight", slice(None), False
        parent, expert, part = module.rsplit(".", 2)
        joint = f"{parent}.gate_up_proj"
        name = joint if part != "down_proj" and joint in self._packed else f"{parent}.{part}"
        tensor = self._probe.tensors[name]
        if name != joint:
            down = self._probe.tensors[f"{parent}.gate_up_proj"]
            return name, int(expert), tensor.shape[1] * 2 == down.shape[2]
        turned = self._probe.tensors[f"{parent}.down_proj"].shape[1] * 2 == tensor.shape[2]
        half = tensor.shape[2 if turned else 1] // 2
        rows = slice(0, half) if part == "gate_proj" else slice(half, None)
        return name, (int(expert), slice(None), rows) if turned else (int(expert), rows), turned

    def error(self, pair: Pair) -> float | str:
        """Relative change of the outputs by random scales; or why the tool has nothing to scale."""
        smooth, balance = pair
        try:
            places = {module: self._tensor(module) for module in (smooth, *balance)}
        except (KeyError, ValueError):
            return "an activation has no weight to divide"
        if {name for name, _, _ in places.values()} & self._unread:
            return "not run by text alone"
        changed = {name: self._probe.tensors[name].clone() for name, _, _ in places.values()}
        name, at, turned = self._tensor(next(iter(balance)))
        piece = changed[name][at]
        s = torch.rand(piece.shape[0 if turned else -1], dtype=torch.float64) + 0.5
        for module, (name, at, turned) in places.items():
            c = self._offsets.get(name, 0.0)
            part = changed[name][at] + c
            if module == smooth:
                rows = part if part.ndim == 1 or not turned else part.T
                rows[-len(s) :] /= s if part.ndim == 1 else s[:, None]
                bias = f"{module}.bias"
                if bias in self._probe.tensors:
                    changed[bias] = self._probe.tensors[bias].clone()
                    changed[bias][-len(s) :] /= s
            else:
                part = part * (s[:, None] if turned else s)
            changed[name][at] = part - c
        return self._probe.error(changed)


def differences(name: str) -> tuple[bool, int, list[tuple[str, str]]]:
    """Whether all mappings found are proved, how many there are, and how and why they differ from the tables."""
    model, inputs = made(name)
    sym = iw.symmetries(model, inputs)
    found, subject = sym.mappings(), subject_of(sym)
    proving = Proving(subject)
    tool = Tool(proving.subject, proving.probe)
    rtol = found.entries[0].proof.rtol
    rows: dict[tuple[str, str], None] = {}
    for family in ("awq", "smoothquant"):
        if name not in DATA[family]:
            continue
        label = {"awq": "AWQ", "smoothquant": "SmoothQuant"}[family]
        entries = [entry for entry in found.entries if family == "awq" or entry.kind == "norm"]
        ours, table = pairs(entries), DATA["tables"][DATA[family][name]]
        theirs = resolved(table, subject.names)
        by_smooth = dict(ours)
        answered = set()
        for pair in sorted(theirs - ours, key=str):
            error, right = tool.error(pair), by_smooth.get(pair[0])
            if isinstance(error, str):
                why = f"theirs {outlined(pair)}: {error}"
            elif right is not None and right > pair[1]:  # where only a choice reads it, an example may not show it
                answered.add(pair[0])
                left = ", ".join(dict.fromkeys(n.rsplit(".", 1)[1] for n in sorted(right - pair[1])))
                why = f"wrong there, {outlined(pair)}: leaves out {left}"
            elif error <= rtol:
                why = f"MISSING HERE {outlined(pair)}: error {error:.1e}"
            else:
                why = f"wrong there, {outlined(pair)}: the balance layers do not read what that layer writes"
            rows[label, why] = None
        for pair in sorted(ours - theirs, key=str):
            if pair[0] in answered:
                continue
            rows[label, f"missing there, {outlined(pair)}: {unscoped(pair, table)}"] = None
    return found.proved, len(found.entries), list(rows)


def unscoped(pair: Pair, table: list) -> str:
    """Why a table lacks a pair: it has no pattern for it, or its patterns gather modules of several kinds."""
    for smooth, balance in table:
        known = [t for t in balance if any(re.match(t.removeprefix("re:"), name) for name in pair[1])]
        if re.match(smooth.removeprefix("re:"), pair[0]) and known:
            return "its patterns do not group by layer here (modules of other layers or towers match too)"
    return "not in its table"


def listed_row(name: str) -> str:
    """A class of the tables: mappings found, and what differs."""
    proved, count, rows = differences(name)
    said = "; ".join(f"{label}: {why}" for label, why in rows) or "none"
    return f"| {name} | {count}{'' if proved else ' NOT PROVED'} | {said} |"


def unlisted_row(name: str) -> str:
    """A class that the tables do not have: mappings found."""
    model, inputs = made(name)
    found = iw.symmetries(model, inputs).mappings()
    said = "; ".join(str(e).replace("re:.*", "").replace("$", "").replace("|", "\\|") for e in found.entries)
    return f"| {name} | {said}{'' if found.proved else ' NOT PROVED'} |"


def page() -> str:
    """The table in the docs."""
    lines = [
        "# Mappings of llm-compressor, class by class", "",
        f"Tables: {DATA['source']}, resolved as its modifiers resolve them. The rows are the classes of its AWQ and "
        "SmoothQuant registries that transformers builds from a tiny configuration, with the differences and their "
        "reasons. \"Wrong there\" means that random scales, applied as its modifiers apply them, change the outputs. "
        "Every mapping found here is proved in the same way, and every one of its mappings that keeps the function is "
        "found here.", "",
        "| class | found, proved | difference |", "|---|---|---|",
    ]  # fmt: skip
    lines += [listed_row(name) for name in listed()]
    left = ", ".join(sorted(NOT_IN_TRANSFORMERS))
    lines += [
        "",
        f"Not built, since their code is not in transformers: {left}.",
        "",
        "## Classes that it does not list",
        "",
    ]
    lines += ["| class | found, proved |", "|---|---|"]
    lines += [unlisted_row(name) for name in UNLISTED]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
