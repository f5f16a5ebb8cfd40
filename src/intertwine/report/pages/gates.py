"""The page of a study of gates: effective maps, shared gates, kernels, accuracies, and the paths of one input."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._words import counted
from ..blocks import Block, Details, Figure, Grid, Heading, Paragraph, Shot, Table, Tabs, Wall, noted
from ..figures import Series, bars, heatmap, lines
from ..page import Page, provenance

if TYPE_CHECKING:
    from ...gates.affine_maps import EffectiveMap
    from ...gates.examine import GateStudy

_WIDTH = 128  # pixels of a picture's longer side
_BLUE, _WHITE, _RED = (33, 102, 172), (247, 247, 247), (178, 24, 43)
_UNITS = 24  # most pictures per layer
_TABS = 6
_TELLING = 15  # units listed per layer


def gates_page(study: GateStudy) -> Page:
    """Lay out the page of a study.

    Test accuracies of gated versions are shown if ``study.settings`` holds them as ``accuracies`` (a list of mappings
    with ``network`` and ``test accuracy``), and a second network as ``other``.
    """
    blocks: list[Block] = [
        Paragraph(study.verdict, "verdict"),
        Grid([_kernel(study, study.npk, "Neural path kernel"), _kernel(study, study.ntk, "Neural tangent kernel")]),
        *noted(study.notes),
        *_accuracies(study),
        *_features(study),
        Heading("When units are on"),
        _statistics_figure(study),
        Table.of(study.to_frame(), "~: centred alignment of two kernels, 1 for equal ones, 0 for chance."),
        Heading("Kernels: which examples switch on the same paths"),
        Paragraph(_KERNELS),
        Grid([_bases(study), _alignments(study)]),
        Heading("Which gates classes share"),
        Paragraph(_SHARED),
        Tabs({n: [_shared(study, n)] for n in reversed(spread(study.shared.layers))}, "Layer"),
        Heading("One input, path by path"),
        *_one_input(study),
        *_other(study),
        *_provenance(study),
    ]
    units = sum(layer.units for layer in study.layers)
    return Page(
        f"Gates and paths of {study.model}",
        blocks,
        f"{counted(len(study.layers), 'layer')} of gates, {counted(units, 'unit')}, "
        f"{counted(study.examples, 'example')}",
    )


_KERNELS = (
    "Examples are in the order of their classes, so that squares along the diagonal are classes. The path kernel adds "
    "up the paths that two examples both switch on, weighted by their inputs; it knows weights through gates alone. "
    "The tangent kernel says how training on one example moves the output of another. A base kernel is one layer's "
    "share. All are normalised to 1 on the diagonal."
)
_SHARED = (
    "The share of units that are on for both of two examples, one of each class, relative to what each class shares "
    "with itself: 1 means that a layer's gates do not tell the two classes apart."
)


def _features(study: GateStudy) -> list[Block]:
    if study.features is None or not _is_image(study.example):
        return []
    whose = study.settings.get("feature network", "a linear gating network")
    text = (
        f"In {whose} the gates come from a network without any nonlinearity, so that each unit compares the input with "
        "one image and is on where they agree: red adds, blue takes away. The units with the largest images are shown, "
        "of convolutions at the centre position."
    )
    tabs: dict[str, list[Block]] = {
        n: [_wall(study.features[n])] for n in spread([m.layer for m in study.features])[::-1]
    }
    return [Heading("What the gates look for"), Paragraph(text), Tabs(tabs, "Layer")]


def spread(names: Sequence[str], most: int = _TABS) -> list[str]:
    """At most ``most`` layers, as many as there is room for titles of tabs, from the first to the last."""
    last = len(names) - 1
    chosen = range(len(names)) if last < most else [round(k * last / (most - 1)) for k in range(most)]
    return [names[i] for i in chosen]


def _wall(one: EffectiveMap) -> Wall:
    images = one.images
    norms = images.flatten(1).norm(dim=1)
    best = norms.argsort(descending=True)[:_UNITS].tolist()
    shots = []
    for group in (best[i : i + 4] for i in range(0, len(best), 4)):
        sizes = ", ".join(f"{float(norms[u]):.2f}" for u in group)
        pictures = [signed_picture(images[u]) for u in group]
        shots.append(Shot(pictures, f"Units {', '.join(map(str, group))}", f"norms {sizes}"))
    return Wall(shots)


def _accuracies(study: GateStudy) -> list[Block]:
    found = study.settings.get("accuracies") or []
    if not found:
        return []
    columns = ["network", "gates", "value network is given", "test accuracy", "epochs", "parameters"]
    percent = lambda share: "not trained" if share is None else f"{share:.2%}"
    rows = [[a.get(c) if c != "test accuracy" else percent(a[c]) for c in columns] for a in found]
    known = [a for a in found if a["test accuracy"] is not None]
    heights = [100 * a["test accuracy"] for a in known] or [0.0]
    figure = lines(
        [a["network"] for a in known],
        [Series("test accuracy", heights)],
        title="Test accuracy, in per cent",
        caption="The dual view's claim: gates decide, so that a constant input costs little. One seed each. The axis "
        f"spans what is there: from {min(heights):.1f} to {max(heights):.1f}.",
        y_title="per cent",
        limits=None,
        joined=False,
    )
    return [Heading("The network and its gated versions"), Table(columns, rows), *([figure] if len(known) > 1 else [])]


def _statistics_figure(study: GateStudy) -> Figure:
    share = {
        "on, on average": [layer.on for layer in study.layers],
        "never on": [layer.never / layer.units for layer in study.layers],
        "always on": [layer.always / layer.units for layer in study.layers],
    }
    caption = "Units that are always on are linear; units that are never on carry no path."
    names = [layer.name for layer in study.layers]
    return bars(names, share, title="Share of units", caption=caption, y_title="share of units")


def _of_classes(values: list[list[float]], names: Sequence[str], title: str, name: str = "value") -> Figure:
    """A heat map of pairs of examples or classes; colours start at a tenth at or below the least off the diagonal."""
    known = [v for i, row in enumerate(values) for j, v in enumerate(row) if v == v and (i != j or len(values) == 1)]
    limits = (math.floor(10 * min(known, default=0.0)) / 10, max([1.0, *known]))
    return heatmap(values, names, names, title=title, name=name, row_title="class", column_title="class", limits=limits)


def _kernel(study: GateStudy, kernel: Tensor, title: str) -> Figure:
    return _of_classes(kernel.tolist(), [study.shared.classes[c] for c in study.labels.tolist()], title)


def _bases(study: GateStudy) -> Tabs:
    """The base kernels, deepest layer first."""
    names = spread(list(study.base), 3)  # they take half the width of the page
    return Tabs({n: [_kernel(study, study.base[n], f"Base kernel of {n}")] for n in reversed(names)}, "Layer")


def _alignments(study: GateStudy) -> Figure:
    names = list(study.alignments)
    values = [[float(study.alignments[a][b]) for b in names] for a in names]
    low = min((v for row in values for v in row if v == v), default=0.0)
    return heatmap(
        values, names, names, title="How alike the kernels are", name="alignment", limits=(min(0.0, low), 1.0),
        caption="Centred alignment, diagonals left out: 1 for equal kernels, 0 for chance. Labels: 1 within a class.",
    )  # fmt: skip


def _shared(study: GateStudy, layer: str) -> Figure:
    title = f"Gates of {layer} that two classes share"
    return _of_classes(study.shared.alignment(layer).tolist(), study.shared.classes, title, "alignment")


def _one_input(study: GateStudy) -> list[Block]:
    active = study.active
    output = int(active.outputs.argmax())
    classes = study.shared.classes
    named = classes[output] if len(classes) == len(active.outputs) else str(output)
    text = (
        f"This input switches on 10^{active.log_overlap / math.log(10):.1f} paths to each output (pairs of paths where "
        f"layers share weights). With its gates held fixed the network is affine, so that output {named} is exactly "
        "the sum of what every entry of the input adds, plus what biases add "
        f"({float(active.offsets[output]):+.3f}, of {float(active.outputs[output]):.3f})."
    )
    if not _is_image(study.example):
        return [Paragraph(text)]
    added = active.contributions(output, study.example)
    shots = [
        Shot([input_picture(study.example)], "The input", "as the network is given it"),
        Shot([signed_picture(active.weights[output])], f"Its map to output {named}", "red adds, blue takes away"),
        Shot([signed_picture(added)], "What each pixel adds", "the map times the input"),
    ]
    return [Paragraph(text), Wall(shots)]


def _other(study: GateStudy) -> list[Block]:
    other = study.settings.get("other")
    if not other:
        return []
    text = (
        f"The path kernels of {study.model} and {other['name']} are aligned to {other['npk alignment']:.3f}: 1 would "
        "be the same network up to symmetry."
    )
    if (level := other.get("npk alignment untrained")) is not None:
        text += f" Two networks of these architectures that nobody trained are aligned to {level:.3f} on these inputs."
    blocks: list[Block] = [Heading(f"Beside {other['name']}"), Paragraph(text)]
    if other.get("spaces"):
        columns = ["space", "layers", "agreement", "before", "untrained", "ambiguous"]
        rows = [[", ".join(s[c]) if c == "layers" else s.get(c) for c in columns] for s in other["spaces"]]
        caption = (
            "Units paired by when they are on: the share of gates that agree, after and before the pairing, and that "
            "of untrained networks after a pairing of theirs."
        )
        blocks.append(Table(columns, rows, caption))
    return blocks


def _provenance(study: GateStudy) -> list[Block]:
    tables = []
    for layer, rates in zip(study.shared.layers, study.shared.rates):
        spread = (rates.amax(0) - rates.amin(0)).flatten()
        best = spread.topk(min(_TELLING, len(spread))).indices
        units = torch.stack(torch.unravel_index(best, rates.shape[1:]), 1).tolist()
        rows = [[str(unit), *rates[(slice(None), *unit)].tolist()] for unit in units]
        caption = f"How often the units of {layer} that differ most between classes are on."
        tables.append(Table(["unit", *study.shared.classes], rows, caption, digits=2))
    shown = ("accuracies", "other", "feature network")
    return [*provenance(study.settings, {}, shown), Details("Units that tell classes apart", tables)]


def _is_image(x: Tensor) -> bool:
    """Whether an input can be drawn, as one of shape ``(1 or 3, H, W)`` can."""
    return x.ndim == 3 and x.shape[0] in (1, 3)


def input_picture(x: Tensor) -> str:
    """An input scaled from black (smallest entry) to white (largest), as base64 of a JPEG file."""
    low, high = x.min(), x.max()
    grey = (x - low) / (high - low).clamp_min(1e-12)
    return _jpeg(255 * grey.expand(3, -1, -1))


def signed_picture(weights: Tensor) -> str:
    """Weights ``(1 or 3, H, W)`` over an input: blue below 0, white at 0, red above, as base64 of a JPEG file.

    Channels are summed; the largest weight has full colour.
    """
    w = weights.sum(0)
    w = (w / max(float(w.abs().max()), 1e-12)).clamp(-1, 1)
    colour = lambda rgb: torch.tensor(rgb, dtype=w.dtype, device=w.device)[:, None, None]
    end = torch.where(w[None] < 0, colour(_BLUE), colour(_RED))
    return _jpeg(colour(_WHITE) + w.abs()[None] * (end - colour(_WHITE)))


def _jpeg(pixels: Tensor) -> str:
    from PIL import Image

    scale = max(1, _WIDTH // max(pixels.shape[1:]))
    large = pixels.repeat_interleave(scale, 1).repeat_interleave(scale, 2)  # pixels stay squares
    image = large.round().clamp(0, 255).to("cpu", torch.uint8).permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=90, subsampling=0, optimize=True)
    return base64.b64encode(file.getvalue()).decode()
