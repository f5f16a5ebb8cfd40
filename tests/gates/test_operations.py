"""Operations between weights and gates: the path kernel of each against enumeration, which knows none of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intertwine as iw


class Fn(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def equal(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def network(x, *middle, channels=2):
    """A convolution, a ReLU, what is tried, and a linear layer, with gates that are on for about half of all."""
    conv = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[x.dim()]
    torch.manual_seed(1)
    model = nn.Sequential(conv(1, channels, 2), nn.ReLU(), *middle, nn.Flatten(), nn.LazyLinear(2)).double().eval()
    model(x)
    return model


def agree(model, x):
    found = iw.gates.paths(model, x)
    equal(found.outputs, model(x)[:, 0])
    kernel = iw.gates.neural_path_kernel(model, x)
    assert kernel.abs().max() > 0
    equal(kernel, found.kernel())


IMAGES = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
MAPS = {
    "reflection": lambda q: F.pad(q, (1, 1, 1, 1), mode="reflect"),
    "replication": lambda q: F.pad(q, (1, 0, 1, 1), mode="replicate"),
    "negative": lambda q: -q,
    "difference": lambda q: 2 - 3 * q,
    "reversed difference": lambda q: 1 - q,
    "flip": lambda q: q.flip(2),
    "roll": lambda q: q.roll((1, 1), (2, 3)),
    "nearest": lambda q: F.interpolate(q, scale_factor=2),
    "nearest exact": lambda q: F.interpolate(q, scale_factor=2, mode="nearest-exact"),
    "bilinear": lambda q: F.interpolate(q, size=(4, 5), mode="bilinear"),
    "bicubic": lambda q: F.interpolate(q, size=(4, 5), mode="bicubic"),
    "sum over space": lambda q: q.sum((2, 3)),
    "sum over an axis": lambda q: q.sum(3),
    "rows for columns": lambda q: q.transpose(2, 3),
    "one row": lambda q: q[:, :, 0],
    "chunks": lambda q: torch.cat(q.chunk(2, 1)[::-1], 1),
    "unequal splits": lambda q: torch.cat(q.split([1, 1], 1), 1),
    "adaptive maximum": lambda q: F.adaptive_max_pool2d(q, 2),
    "dilated maximum": lambda q: F.max_pool2d(q, 2, 1, dilation=2),
    "padded maximum": lambda q: F.max_pool2d(q, 3, 2, padding=1, ceil_mode=True),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_map_of_positions(name):
    agree(network(IMAGES, Fn(MAPS[name])), IMAGES)


@pytest.mark.parametrize("name", [n for n in MAPS if MAPS[n](torch.ones(1, 2, 3, 3)).shape[2:].numel() > 3])
def test_a_map_of_positions_before_a_convolution(name):
    agree(network(IMAGES, Fn(MAPS[name]), nn.Conv2d(2, 2, 2), nn.ReLU()), IMAGES)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"dilation": 2, "padding": 1},
        {"stride": 2, "groups": 2, "bias": False},
        {"stride": 3, "padding": 2},
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_transposed_convolutions(options, size):
    x = IMAGES[..., :3, :3]
    agree(network(x, nn.ConvTranspose2d(2, 2, size, **options), nn.ReLU()), x)


def test_transposed_convolutions_in_one_dimension_with_pooling():
    x = IMAGES[:, :, 0]
    agree(network(x, nn.ConvTranspose1d(2, 2, 2, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)), x)


def test_volumes():
    x = torch.randn(3, 1, 3, 3, 3, generator=torch.Generator().manual_seed(0)).double()
    pooled = [nn.MaxPool3d(2, 1), nn.Conv3d(2, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1)]
    agree(network(x, *pooled), x)
    agree(network(x, nn.AdaptiveMaxPool3d(1)), x)


def test_sequences_with_max_pooling():
    x = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(0)).double()
    agree(network(x, nn.MaxPool1d(2), nn.Conv1d(2, 2, 2), nn.ReLU()), x)
    agree(network(x, nn.AdaptiveMaxPool1d(2)), x)


@pytest.mark.parametrize("name", ["sum over channels", "flip of channels", "roll of everything"])
def test_what_mixes_channels_is_refused(name):
    f = {
        "sum over channels": lambda q: q.sum(1, keepdim=True),
        "flip of channels": lambda q: q.flip(1),
        "roll of everything": lambda q: q.roll(1),
    }[name]
    model = network(IMAGES, Fn(f))
    found = iw.gates.paths(model, IMAGES)
    equal(found.outputs, model(IMAGES)[:, 0])
    with pytest.raises(ValueError, match=r"axes than positions|a choice of examples or channels"):
        iw.gates.neural_path_kernel(model, IMAGES)


def test_two_readings_of_one_activation_are_refused():
    model = network(IMAGES, Fn(lambda q: q + q.flip(2)))
    equal(iw.gates.paths(model, IMAGES).outputs, model(IMAGES)[:, 0])
    with pytest.raises(ValueError, match="read in two ways"):
        iw.gates.neural_path_kernel(model, IMAGES)


X = torch.randn(3, 4)
REFUSED = {
    "dropout called while training": (
        nn.Sequential(nn.Linear(4, 3), Fn(lambda q: F.dropout(q, 0.5, True)), nn.ReLU(), nn.Linear(3, 2)),
        "evaluation mode.*dropout",
    ),
    "layer norm": (
        nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU(), nn.Linear(3, 2)),
        "own input.*batch norm",
    ),
    "group norm": (
        nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.ReLU(), nn.Linear(4, 2)),
        "own input.*batch norm",
    ),
    "batch norm without statistics": (
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.ReLU(), nn.Linear(3, 2)).eval(),
        "running statistics.*track_running_stats=False",
    ),
    "random leaky ReLU": (nn.Sequential(nn.Linear(4, 3), nn.RReLU(), nn.Linear(3, 2)).eval(), "nn.LeakyReLU"),
}


@pytest.mark.parametrize("function", ["paths", "neural_path_kernel", "gate_patterns", "overlap", "top_paths"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gates_is_refused_in_words(name, function):
    model, match = REFUSED[name]
    with pytest.raises(ValueError, match=match):
        getattr(iw.gates, function)(model, X[:1] if function == "top_paths" else X)


def test_dropout_that_is_off_is_no_reason():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    quiet = nn.Sequential(model[0], Fn(lambda q: F.dropout(q, 0.5, False)), *model[1:])
    equal(iw.gates.neural_path_kernel(quiet, X), iw.gates.neural_path_kernel(model, X))
