"""A comparison made by hand: no networks, known numbers."""

import torch

from intertwine.similarity.comparison.result import Comparison

MEASURES = ("orthogonal_procrustes", "g_relu_procrustes", "linear_cka", "g_relu_cka")
HOSTILE = (
    "<script>window.hacked=1</script>", "<b>bold</b>", "</script><!-- %{x} $y$ 'q' \"z\"",
    "<img src=x onerror=window.hacked=1>", "&lt;i&gt;",
)  # fmt: skip


def made_comparison(layers_a=None, layers_b=None, null=True, **changes):
    """Scores fall off from the diagonal; chance is 0.3 for Procrustes and 0 for CKA."""
    layers_a = tuple(layers_a or (f"layer{i}.relu" for i in range(6)))
    layers_b = tuple(layers_b or layers_a)
    i = torch.arange(len(layers_a), dtype=torch.float64)[:, None] / len(layers_a)
    j = torch.arange(len(layers_b), dtype=torch.float64)[None] / len(layers_b)
    scores = {m: (0.9 - 0.1 * k) * torch.exp(-((4 * (i - j)) ** 2)) + 0.05 for k, m in enumerate(MEASURES)}
    chance = {m: torch.full_like(s, 0.3 if "procrustes" in m else 0.0) for m, s in scores.items()}
    nothing = dict.fromkeys(MEASURES)
    fields = {
        "layers_a": layers_a,
        "layers_b": layers_b,
        "measures": MEASURES,
        "scores": scores,
        "low": {m: s - 0.05 for m, s in scores.items()} if null else nothing,
        "high": {m: s + 0.04 for m, s in scores.items()} if null else nothing,
        "chance": chance if null else nothing,
        "null_p": {m: torch.where(scores[m] > chance[m] + 0.1, 0.01, 0.5) for m in MEASURES} if null else nothing,
        "calibrated": {m: ((scores[m] - chance[m]) / (1 - chance[m])).clamp(min=0) for m in MEASURES}
        if null
        else nothing,
        "floor": {m: torch.full_like(s, 0.293) if "procrustes" in m else None for m, s in scores.items()},
        "groups": dict.fromkeys(MEASURES, "permutations <of> channels"),
        "channels_a": (16,) * len(layers_a),
        "channels_b": (32,) * len(layers_b),
        "dead_a": tuple(k % 3 for k in range(len(layers_a))),
        "dead_b": (0,) * len(layers_b),
        "shapes_a": ((16, 8, 8),) * len(layers_a),
        "shapes_b": ((32, 8, 8),) * len(layers_b),
        "examples": 1000,
        "seed": 7,
        "settings": {"null": 20, "confidence": 0.95},
        "notes": ("a note with <b>markup</b>",),
        "versions": {"torch": "2.99"},
    }
    return Comparison(**{**fields, **changes})
