"""Operations between weights and gates: the path kernel of each against enumeration, which knows none of them."""

import pytest
import torch
import torch.nn.functional as F
from made import Function, Made
from numeric import equal
from torch import nn

import intertwine as iw
from intertwine.gates.kernels import path_kernel as registry
from intertwine.programs import capture


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


def refused(model, x, reason="read in two ways"):
    """The path kernel says what it does not know; enumeration still gives the kernel of a small network."""
    with pytest.raises(ValueError, match=reason):
        iw.gates.neural_path_kernel(model, x)
    equal(iw.gates.paths(model, x).outputs, model(x)[:, 0].detach())


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
    agree(network(IMAGES, Function(MAPS[name])), IMAGES)


@pytest.mark.parametrize("name", [n for n in MAPS if MAPS[n](torch.ones(1, 2, 3, 3)).shape[2:].numel() > 3])
def test_a_map_of_positions_before_a_convolution(name):
    agree(network(IMAGES, Function(MAPS[name]), nn.Conv2d(2, 2, 2), nn.ReLU()), IMAGES)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2, "padding": 1},
        {"stride": 2, "groups": 2, "bias": False}, {"stride": 3, "padding": 2},
    ],
)  # fmt: skip
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
    agree(network(x, nn.AdaptiveAvgPool3d(2)), x)


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
    refused(network(IMAGES, Function(f)), IMAGES, "axes than positions|a choice of examples or channels")


def branches(f, x):
    """A layer of four channels, something made of it, and an output layer."""
    torch.manual_seed(3)
    first = nn.Linear(3, 4) if x.dim() == 2 else nn.Conv1d(1, 4, 3)
    model = Made(lambda m, x: m.last(f(m.first(x)).flatten(1)), first=first, last=nn.LazyLinear(2))
    model.double().eval()(x)
    return model


FLAT = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double()
LONG = torch.randn(3, 1, 6, generator=torch.Generator().manual_seed(1)).double()
SUMS = {
    "two slices": lambda h: F.relu(h[:, :2]) + h[:, 2:],
    "two slices behind gates": lambda h: F.relu(h)[:, :2] + F.relu(h)[:, 2:],
    "two chunks": lambda h: (lambda a, b: F.relu(a) - b)(*h.chunk(2, 1)),
    "slices that overlap": lambda h: F.relu(h[:, :3]) + h[:, 1:],
    "one slice twice": lambda h: F.relu(h[:, :2]) + h[:, :2],
    "one chunk twice": lambda h: (lambda a: F.relu(a) + a)(h.chunk(2, 1)[0]),
    "exchanged": lambda h: F.relu(h) + torch.cat([h[:, 2:], h[:, :2]], 1),
    "taken apart and joined": lambda h: F.relu(h) + torch.cat([h[:, :2], h[:, 2:]], 1),
    "there and back": lambda h: F.relu(h[:, :2] - h[:, 2:]) + h[:, 2:],
}
UNKNOWN = {"one slice twice", "taken apart and joined", "there and back"}  # of one field, read in two ways


@pytest.mark.parametrize("x", [FLAT, LONG], ids=["flat", "long"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_channels_of_one_layer(name, x):
    """Different channels are independent, the same ones are not."""
    check = refused if name in UNKNOWN else agree
    check(branches(SUMS[name], x), x)
    if x.dim() == 3:
        check(branches(lambda h: SUMS[name](h).mean(2), x), x)


CONSTANTS = {
    "behind a maximum": lambda x: F.max_pool1d(F.relu(x), 2) + 1,
    "normalised behind a maximum": lambda x: (F.max_pool1d(F.relu(x), 2) - 0.3) / 0.5,
    "behind an upsampling": lambda x: F.relu(F.interpolate(x, size=7, mode="linear") + 1),
    "behind an average": lambda x: F.relu(F.avg_pool1d(x, 2) + 1),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_added_before_any_weight(name):
    model = nn.Sequential(Function(CONSTANTS[name]), nn.Flatten(), nn.LazyLinear(2)).double().eval()
    model(LONG)
    agree(model, LONG)


@pytest.mark.parametrize(
    ("pool", "length"),
    [
        (nn.AvgPool1d(2, ceil_mode=True), 3),
        (nn.AdaptiveAvgPool1d(2), 3),
        (nn.AdaptiveAvgPool1d(2), 5),
        (nn.AvgPool1d(3, 2, 1, count_include_pad=False), 5),
    ],
)
def test_averages_of_different_sizes(pool, length):
    """Each 1/size is a value, which no path counts: with constant 1 the kernel counts pairs of paths of a bundle."""
    x = torch.ones(1, 1, length, dtype=torch.float64)
    model = nn.Sequential(nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(1, bias=False)).double().eval()
    model(x)
    agree(model, x)
    counted = float(iw.gates.neural_path_kernel(model, x))
    assert counted == pytest.approx(round(counted), abs=1e-9)


def test_a_short_last_window_is_a_path_like_any_other():
    pool = nn.AvgPool1d(2, ceil_mode=True)
    model = nn.Sequential(nn.ReLU(), pool, nn.Flatten(), nn.Linear(2, 1, bias=False))
    assert float(iw.gates.neural_path_kernel(model, torch.ones(1, 1, 3))) == pytest.approx(2**2 + 1)


X = torch.randn(3, 4)
REFUSED = {
    "no ReLU": (nn.Linear(4, 2), "model must have ReLUs"),
    "GELU": (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)), "only nonlinearities. Got gelu"),
    "softmax": (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(1)), "attention or a softmax"),
    "one layer twice": (nn.Sequential(*[nn.Linear(4, 4), nn.ReLU()] * 2), "every parameter must be used once"),
    "dropout at work": (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)),
        r"evaluation mode.*Dropout '2' in training mode. Call model.eval\(\) first",
    ),
    "dropout called while training": (
        nn.Sequential(nn.Linear(4, 3), Function(lambda q: F.dropout(q, 0.5, True)), nn.ReLU(), nn.Linear(3, 2)),
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
    **{
        name: (nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(width, 3), nn.ReLU(), nn.Linear(3, 2)), f"Got {name}")
        for name, layer, width in (
            ("softshrink", nn.Softshrink(), 6),
            ("hardshrink", nn.Hardshrink(), 6),
            ("glu", nn.GLU(), 3),
        )
    },
    "random leaky ReLU": (nn.Sequential(nn.Linear(4, 3), nn.RReLU(), nn.Linear(3, 2)).eval(), "nn.LeakyReLU"),
}


@pytest.mark.parametrize("function", ["paths", "neural_path_kernel", "gate_patterns", "overlap"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gates_is_refused_in_words(name, function):
    model, match = REFUSED[name]
    with pytest.raises(ValueError, match=match):
        getattr(iw.gates, function)(model, X)


def test_dropout_that_is_off_is_no_reason():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    quiet = nn.Sequential(model[0], Function(lambda q: F.dropout(q, 0.5, False)), *model[1:])
    equal(iw.gates.neural_path_kernel(quiet, X), iw.gates.neural_path_kernel(model, X))


CONDITIONS = "conditions or whole numbers of activations"
CURVED = "linear between its gates. Got {name}.*which is not"
NOT_AFFINE = {
    "conditions": (lambda q: torch.where(q > 0, q, torch.zeros_like(q)), CONDITIONS),
    "masks": (lambda q: q.masked_fill(q < 0, 0.0), CONDITIONS),
    "pow": (lambda q: q.pow(2), CURVED),
    "maximum": (lambda q: torch.maximum(q, q.flip(1)), CURVED),
    "amax": (lambda q: q - q.amax(1, keepdim=True), CURVED),
    "mul": (lambda q: q * q.flip(1), CURVED),
    "div": (lambda q: q / (q.mean(1, keepdim=True) + 9), CURVED),
    "sqrt": (lambda q: q.relu().sqrt(), CURVED),
    "reciprocal": (lambda q: (q + 9).reciprocal(), CURVED),
}
AFFINE = {
    "pow": lambda q: q.pow(1), "cumsum": lambda q: q.cumsum(1), "lerp": lambda q: torch.lerp(q, q.flip(1), 0.3),
    "where": lambda q: torch.where(torch.tensor([True, False, True]), q, 0.0),
}  # fmt: skip


def between(function):
    return nn.Sequential(nn.Linear(4, 3), Function(function), nn.ReLU(), nn.Linear(3, 2))


@pytest.mark.parametrize("function", ["paths", "neural_path_kernel", "gate_patterns"])
@pytest.mark.parametrize("name", NOT_AFFINE)
def test_what_is_not_affine_between_gates_is_refused_by_all_alike(name, function):
    between_gates, match = NOT_AFFINE[name]
    with pytest.raises(ValueError, match=match.format(name=name)):
        getattr(iw.gates, function)(between(between_gates), X)


@pytest.mark.parametrize("name", AFFINE)
def test_what_is_affine_between_gates_is_read_whatever_the_operation(name):
    model = between(AFFINE[name]).double()
    equal(iw.gates.paths(model, X.double()).outputs, model(X.double())[:, 0])
    assert torch.equal(iw.gates.gate_patterns(model, X.double())["2"], model[:2](X.double()) > 0)


def test_empty_inputs_and_models_without_weights_are_refused_in_words():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(ValueError, match="model must have parameters as weights"):
        iw.gates.paths(Function(lambda x: torch.relu(x @ torch.ones(4, 2).to(x))), X)
    with pytest.raises(ValueError, match="at least one example"):
        iw.gates.paths(model, torch.zeros(2, 0))


def test_nothing_joined_to_something():
    padded = Made(
        lambda m, x: m.last(torch.cat([torch.relu(m.first(x)), torch.zeros_like(x)], 1)), first=nn.Linear(4, 3),
        last=nn.Linear(7, 2),
    )  # fmt: skip
    refused(padded.double(), X.double(), "no rule|constant|linear")


def test_a_mean_over_channels_as_many_as_positions():
    """Shapes alone do not tell which axis went: no silent answer."""

    mean = Made(lambda m, x: m.last(torch.relu(m.first(x)).mean(1)), first=nn.Conv1d(1, 3, 2), last=nn.Linear(3, 2))
    refused(mean.double(), LONG[..., :4], "axes than positions")


def test_a_network_without_a_path():
    """All that is left of the first layer is cut away."""
    model = nn.Sequential(
        nn.Linear(4, 3), nn.ReLU(), Function(lambda q: F.pad(q[:, :0], (0, 3))), nn.Linear(3, 2, bias=False)
    )
    found = iw.gates.paths(model.double(), X.double())
    assert found.count == found.bundles == 0 and not found.kernel().any() and not found.overlap().any()
    assert not iw.gates.neural_path_kernel(model, X.double()).any()


def test_a_rule_teaches_the_path_kernel_an_operation(monkeypatch):
    """Without its rule an operation is refused; with it, it is covered."""
    rule = registry._RULES[capture(Function(torch.neg), (X,)).calls[0].op]
    x = X.double()
    model = nn.Sequential(nn.Linear(4, 5), Function(torch.neg), nn.ReLU(), nn.Linear(5, 2)).double()
    expected = iw.gates.paths(model, x).kernel()
    equal(iw.gates.neural_path_kernel(model, x), expected)
    monkeypatch.delitem(registry._RULES, "aten::neg")
    with pytest.raises(ValueError, match="no rule of the path kernel covers: neg"):
        iw.gates.neural_path_kernel(model, x)
    iw.gates.register_kernel_rule("aten::neg")(rule)
    equal(iw.gates.neural_path_kernel(model, x), expected)


@pytest.mark.parametrize("op", ["neg", "aten::", "aten::neg.default", "aten::neg (writes)"])
@pytest.mark.parametrize("register", [iw.gates.register_kernel_rule, iw.symmetry.register_rule])
def test_rules_are_registered_under_qualified_names_alone(register, op):
    with pytest.raises(ValueError, match="op must be a qualified name"):
        register("intertwine_tests::other", op)


class Fork(nn.Module):
    def __init__(self, which):
        super().__init__()
        self.first, self.last, self.which = nn.Linear(4, 5), nn.Linear(5, 2), which

    def forward(self, x):
        h = self.first(x)
        return self.last(torch.relu(h) if self.which(x) else -h.abs())


@pytest.mark.parametrize(
    ("which", "match"),
    [
        (lambda x: bool(x.mean() > 0), "or read them"),
        (lambda x: x.mean().item() > 0, "or read them"),
        (lambda x: len(x) == 1, "the same gates for every example"),
    ],
)
def test_a_model_whose_path_depends_on_its_inputs_is_refused(which, match):
    torch.manual_seed(0)
    for function in (iw.gates.gate_patterns, iw.gates.neural_path_kernel, iw.gates.paths):
        with pytest.raises(ValueError, match=match):
            function(Fork(which), torch.rand(8, 4))


def test_channels_may_lie_last_in_memory():
    torch.manual_seed(0)
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), *pooled).double()
    x = torch.randn(4, 5, 5, 2, dtype=torch.float64).permute(0, 3, 1, 2)
    agree(model, x)
    equal(iw.gates.neural_path_kernel(model, x), iw.gates.neural_path_kernel(model, x.contiguous()))


def test_factors_within_a_linear_layer_are_refused():
    torch.manual_seed(0)
    parts = {"first": nn.Linear(3, 4), "weight": nn.Parameter(torch.rand(4, 2)), "bias": nn.Parameter(torch.rand(2))}
    model = Made(lambda m, x: torch.addmm(m.bias, m.first(x).relu(), m.weight, alpha=2), **parts)
    with pytest.raises(ValueError, match="a linear layer with factors of its own: addmm"):
        iw.gates.neural_path_kernel(model, torch.rand(3, 3))
