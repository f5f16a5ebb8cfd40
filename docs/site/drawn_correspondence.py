"""Picture of the guide to correspondence: running this file writes ``docs/images/correspond.svg``.

One attention block in two code bases, a box for each tensor, as tall as it has entries along its first index; what
corresponds has one colour and is joined by a band.
"""

from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.patches import Polygon, Rectangle
from torch import Tensor, nn, randn

import intertwine as iw

PICTURE = Path(__file__).parents[1] / "images" / "correspond.svg"
WIDTH, HEADS, GAP = 8, 2, 2.5


class Packed(nn.Module):
    """Attention with one projection for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class ByHand(nn.Module):
    """The same with three projections, a softmax of products and a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.weight, self.bias = nn.Parameter(randn(WIDTH, WIDTH)), nn.Parameter(randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        y = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1) @ v
        return y.transpose(1, 2).flatten(2) @ self.weight + self.bias


def rows_of(region: object) -> tuple[int, int]:
    """First and last index along the first dimension of a part of a tensor."""
    full, start, stop, _ = region.factors[0][0]  # type: ignore[attr-defined]
    scale = region.shape[0] // full  # type: ignore[attr-defined]
    return start * scale, stop * scale


def main() -> None:
    """Draw both and what corresponds."""
    a, b = Packed(), ByHand()
    found = iw.correspond(a, b, randn(2, 5, WIDTH))
    matplotlib.rcParams.update({"svg.hashsalt": "correspond", "svg.fonttype": "none", "font.size": 9})
    figure, axes = pyplot.subplots(figsize=(7.2, 4.6))
    tops: dict[tuple[str, str], float] = {}
    for side, model, x in (("a", a, 0.0), ("b", b, 6.0)):
        y = 0.0
        for name, tensor in model.named_parameters():
            tops[side, name] = y
            axes.add_patch(Rectangle((x, y), 1, len(tensor), fill=False, edgecolor="#555555", zorder=3))
            shape = " x ".join(map(str, tensor.shape))
            axes.text(x - 0.15 if side == "a" else x + 1.15, y + len(tensor) / 2, f"{name}  {shape}", va="center",
                      ha="right" if side == "a" else "left")  # fmt: skip
            y += len(tensor) + GAP
    colours = matplotlib.colormaps["tab10"]
    for k, entry in enumerate(found.entries):
        (s, t), (u, v) = rows_of(entry.a), rows_of(entry.b)
        left, right = tops["a", entry.a.name], tops["b", entry.b.name]
        for x, start, stop in ((0, left + s, left + t), (6, right + u, right + v)):
            axes.add_patch(Rectangle((x, start), 1, stop - start, color=colours(k), alpha=0.8, linewidth=0))
        band = [(1, left + s), (6, right + u), (6, right + v), (1, left + t)]
        axes.add_patch(Polygon(band, color=colours(k), alpha=0.18, linewidth=0))
        if entry.change:
            axes.text(5.5, right + (u + v) / 2 + 1, entry.change, ha="center", va="center")
    axes.set_xlim(-3, 10)
    axes.set_ylim(max(tops.values()) + WIDTH + 1, -3.5)
    axes.text(0.5, -1.5, "a: packed, fused", ha="center", weight="bold")
    axes.text(6.5, -1.5, "b: by hand", ha="center", weight="bold")
    axes.axis("off")
    figure.savefig(PICTURE, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
