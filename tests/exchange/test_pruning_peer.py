"""Groups of channels beside the dependency graph of Torch-Pruning 1.6, by tensor, axis and positions.

Where the two differ:

- Torch-Pruning also lists the output layer, whose channels are the model's outputs; we list hidden channels alone.
- Within a head, channels of q and k go together and those of v and o; Torch-Pruning has the heads as one group.
- A shortcut that pads with zeros shifts the channels. Torch-Pruning takes padding for a map of each channel by itself,
  and names the wrong ones behind it.
"""

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.lab import networks

pruning = pytest.importorskip("torch_pruning", reason="Torch-Pruning is not installed (pip install torch-pruning)")


class Residual(nn.Module):
    """ResNet with a projection shortcut."""

    def __init__(self):
        super().__init__()
        self.stem, self.first = normed(3, 8), normed(8, 12)
        self.second, self.down = normed(12, 16), normed(8, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.down(x) + self.second(torch.relu(self.first(x))))
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """DenseNet: each layer reads the channels of all before it."""

    def __init__(self):
        super().__init__()
        sizes = (8, 12, 16)
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(n, 4, 3, padding=1, bias=False) for n in sizes)
        self.last, self.head = nn.BatchNorm2d(20), nn.Linear(20, 5)

    def forward(self, x):
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        return self.head(torch.relu(self.last(x)).mean((2, 3)))


class Mobile(nn.Module):
    """MobileNet v2: depthwise convolutions in wide residual branches."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = normed(3, 8), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(
            nn.Sequential(normed(8, 24, 1), nn.ReLU6(), normed(24, 24, 3, 24), nn.ReLU6(), normed(24, 8, 1))
            for _ in range(2)
        )

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Encoder layer with four heads, norms first."""

    def __init__(self, n=16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.q, self.k, self.v, self.o = (nn.Linear(n, n) for _ in range(4))
        self.up, self.down = nn.Linear(n, 24), nn.Linear(24, n)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Vision(nn.Module):
    """ViT without a class token."""

    def __init__(self):
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(3, 16, 4, stride=4), nn.ModuleList([Attention(), Attention()])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def normed(inputs, outputs, size=3, groups=1):
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def theirs(model, x, output):
    """Tensor, axis and positions of each group, without the group of the output layer."""
    names = {module: name for name, module in model.named_modules()}
    graph = pruning.DependencyGraph().build_dependency(model, example_inputs=x)
    found = set()
    for group in graph.get_all_groups(ignored_layers=[output]):
        places = {}
        for dependency, indices in group:
            module, out = dependency.target.module, graph.is_out_channel_pruning_fn(dependency.handler)
            if module in names:
                along = 0 if out or module.weight.ndim == 1 else 1
                axes = {"weight": along} if module.bias is None or along else {"weight": 0, "bias": 0}
                for tensor, axis in axes.items():
                    places.setdefault((f"{names[module]}.{tensor}", axis), set()).update(map(int, indices))
        found.add(frozen(places))
    return found


def ours(model, x, inner=False):
    """The same of our groups, or of those within each unit of another."""
    parameters = dict(model.named_parameters())
    found = set()
    for group in iw.symmetries(model, x).mappings("torch-pruning").document["groups"]:
        if bool(group["for_each_unit_of"]) == inner:
            found.add(frozen({
                (m["tensor"], m["axis"]): {p for unit in m["positions"] for p in unit}
                if "positions" in m else set(range(parameters[m["tensor"]].shape[m["axis"]]))
                for m in group["members"] if m["tensor"] in parameters
            }))  # fmt: skip
    return found


def frozen(places):
    return frozenset((*place, frozenset(positions)) for place, positions in places.items())


def axes_of(groups):
    return {frozenset(place[:2] for place in group) for group in groups}


@pytest.mark.parametrize(("make", "count"), [(Residual, 3), (Dense, 4), (Mobile, 3), (Vision, 5)])
def test_groups_are_those_of_the_dependency_graph(make, count):
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 3, 16, 16)
    found = ours(model, x)
    assert len(found) == count and found == theirs(model, x, model.head)


def test_channels_within_heads_are_finer_than_the_dependency_graph():
    torch.manual_seed(0)
    model, x = Vision().eval(), torch.randn(2, 3, 16, 16)
    assert axes_of(ours(model, x, inner=True)) == {
        frozenset(axes)
        for at in ("blocks.0", "blocks.1")
        for axes in (
            [(f"{at}.{part}.{tensor}", 0) for part in "qk" for tensor in ("weight", "bias")],
            [(f"{at}.v.weight", 0), (f"{at}.v.bias", 0), (f"{at}.o.weight", 1)],
        )
    }


def test_shortcuts_that_pad_shift_the_channels():
    torch.manual_seed(0)
    model, x = networks.build("resnet20").eval(), torch.randn(1, 3, 32, 32)
    found, graph = ours(model, x), theirs(model, x, model.linear)
    alike = found & graph
    assert len(alike) == 9 and all(len(group) == 4 for group in alike)  # the inside of each residual block

    def positions(groups, tensor):
        return sorted(sorted(place[2]) for group in groups - alike for place in group if place[0] == tensor)

    # eight zeros, the 16 channels of the stem, eight zeros; then as many again on both sides of these 32
    assert positions(found, "layer2.0.bn2.weight") == [[*range(8), *range(24, 32)], list(range(8, 24))]
    assert positions(graph, "layer2.0.bn2.weight") == [list(range(16))]
    with torch.no_grad():
        reached = model.layer2[0].shortcut(torch.ones(1, 16, 4, 4))[0, :, 0, 0] != 0
    assert reached.nonzero().flatten().tolist() == list(range(8, 24))
