"""The graph that is drawn: every module that reads weights, what joins them, and no circles."""

import pytest
import torch
from made import Made
from torch import nn

import intertwine as iw
from intertwine.programs import capture, graph
from intertwine.report import page_of, render
from intertwine.report.network import Flow, generalised, network
from intertwine.symmetry import Symmetry


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))).view(x.shape[0], -1))


def net(depth=3, width=4):
    return Made(
        lambda m, x: m.head(m.drop(m.blocks(m.stem(x)))), stem=nn.Linear(3, width),
        blocks=nn.Sequential(*(Block(width) for _ in range(depth))), drop=nn.Dropout(0.5), head=nn.Linear(width, 2),
    )  # fmt: skip


def found(model, x):
    return graph(capture(model.eval(), (x,), {}))


def test_modules_with_weights_and_joins_are_vertices_views_and_dropout_are_not():
    drawn = found(net(1), torch.randn(2, 3))
    assert [(v.module, v.text) for v in drawn] == [
        ("", "input"), ("stem", "linear"), ("blocks.0.norm", "layer norm"), ("blocks.0.up", "linear"),
        ("blocks.0", "relu"), ("blocks.0.down", "linear"), ("blocks.0", "add"), ("head", "linear"), ("", "output"),
    ]  # fmt: skip
    assert [tuple(w.source for w in v.inputs) for v in drawn] == [(), (0,), (1,), (2,), (3,), (4,), (1, 5), (6,), (7,)]
    assert [v.mixes for v in drawn] == [False, True, False, True, False, True, False, True, False]


def test_a_module_that_runs_twice_is_two_vertices():
    linear = nn.Linear(3, 3)
    drawn = found(nn.Sequential(linear, nn.Tanh(), linear), torch.randn(2, 3))
    assert [v.text for v in drawn] == ["input", "linear", "tanh", "linear", "output"]


@pytest.mark.parametrize("depth", [2, 40])
def test_blocks_are_folded_and_each_space_is_one_colour(depth):
    sym = iw.symmetries(net(depth), torch.randn(2, 3))
    page = page_of(sym)
    (figure,) = [block for block in page.blocks if block.kind == "network"]
    assert figure.spec["frames"] == [f"blocks.0–{depth - 1}, {depth} times"]
    assert [node["text"] for node in figure.spec["nodes"] if node["frame"] == 0] == [
        "norm", "up", "relu", "down", "add",
    ]  # fmt: skip
    titles = [flow["title"] for flow in figure.spec["flows"]]
    assert titles == ["residual stream from stem", f"layer 0–{depth - 1}: units of up"]
    texts = [node["text"] for node in figure.spec["nodes"]]
    runs = lambda k: {(texts[e["from"]], texts[e["to"]]) for e in figure.spec["edges"] if k in e["flows"]}
    assert runs(1) == {("up", "relu"), ("relu", "down")}
    assert runs(0) == {
        ("stem", "norm"), ("stem", "add"), ("norm", "up"), ("down", "add"), ("add", "head"),
    }  # fmt: skip


def test_what_is_drawn_is_saved(tmp_path):
    sym = iw.symmetries(net(2), torch.randn(2, 3))
    sym.save(tmp_path / "sym.json")
    again = Symmetry.load(tmp_path / "sym.json")
    assert again.graph == sym.graph and render(page_of(again)) == render(page_of(sym))


def test_flat_chains_are_folded_too():
    deep = nn.Sequential(*(m for _ in range(9) for m in (nn.Linear(4, 4), nn.ReLU())))
    figure = network(found(deep, torch.randn(2, 4)), {}, "deep")
    assert figure.spec["frames"] == ["0 to 1 … 16 to 17, 9 times"]
    assert [node["text"] for node in figure.spec["nodes"]] == ["input", "linear", "relu", "output"]


def test_names_with_ranges():
    assert generalised(["h.0.a", "h.1.a", "h.2.a"]) == "h.0–2.a"
    assert generalised(["0", "2", "4", "6", "8", "10"]) == "0, 2 … 10"
    assert Flow("a").detail == ""
