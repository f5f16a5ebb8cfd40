"""Networks of which only some tensors were changed are related, with those tensors named; where nothing is known of an
operation, networks that do not agree are not called different."""

import copy

import pytest
import torch
from made import Made
from noise import shaken
from torch import Tensor, nn

import intertwine as iw
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME, UNTOLD, Match
from intertwine.matching.same import same
from intertwine.symmetry.detection.rules import registry


def mlp(seed: int = 0, classes: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, classes)
    ).double()  # fmt: skip


def cnn(seed: int = 0, classes: int = 5) -> nn.Module:
    """Batch norms with statistics of their own, as training leaves them."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, classes),
    ).double()  # fmt: skip
    for norm in (model[1], model[4]):
        nn.init.normal_(norm.weight, 1.0, 0.3)
        nn.init.normal_(norm.bias, 0.0, 0.3)
        norm.running_mean.normal_(0.0, 0.5)
        norm.running_var.uniform_(0.5, 2.0)
    return model.eval()


def attention(seed: int = 0, classes: int = 5) -> nn.Module:
    """A transformer with heads, whose values and outputs meet in general bases."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.TransformerEncoder(layer, 1), nn.Linear(16, classes))
    for p in model.parameters():
        nn.init.normal_(p, 0.0 if p.ndim > 1 else 1.0, 0.3)
    return model.double().eval()


MAKERS = {"mlp": (mlp, (4, 6)), "cnn": (cnn, (2, 2, 9, 9)), "attention": (attention, (2, 5, 6))}


def inputs(name: str) -> Tensor:
    return torch.randn(MAKERS[name][1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def head(model: nn.Module) -> set[str]:
    """A linear probe: the last layer anew."""
    last = next(n for n, m in reversed(list(model.named_modules())) if isinstance(m, nn.Linear))
    for p in model.get_submodule(last).parameters():
        nn.init.normal_(p)
    return {f"{last}.weight", f"{last}.bias"}


def classes(model: nn.Module) -> set[str]:
    """The classes renumbered: rows of the head in another order, which no symmetry explains."""
    last = next(n for n, m in reversed(list(model.named_modules())) if isinstance(m, nn.Linear))
    for p in model.get_submodule(last).parameters():
        p.data = p.data.roll(1, 0)
    return {f"{last}.weight", f"{last}.bias"}


def biases(model: nn.Module) -> set[str]:
    changed = {n for n, _ in model.named_parameters() if n.endswith("bias")}
    for n in changed:
        model.get_parameter(n).data += 0.1 * torch.randn_like(model.get_parameter(n))
    return changed


def norms(model: nn.Module) -> set[str]:
    found = {n: m for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d | nn.LayerNorm)}
    for m in found.values():
        m.weight.data *= 1 + 0.2 * torch.randn_like(m.weight)
    return {f"{n}.weight" for n in found}


def few_gains(model: nn.Module) -> set[str]:
    """Two gains of one norm."""
    name, norm = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d | nn.LayerNorm))
    norm.weight.data[:2] *= 1.3
    return {f"{name}.weight"}


CHANGES = {"head": head, "classes": classes, "biases": biases, "norms": norms, "few_gains": few_gains}
CASES = [(n, c) for n in MAKERS for c in CHANGES if n != "mlp" or c in ("head", "classes", "biases")]


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("name", "change"), CASES)
def test_what_was_tuned_is_named(name, change, moved):
    a, x = MAKERS[name][0](), inputs(name)
    tuned = copy.deepcopy(a)
    torch.manual_seed(1)
    with torch.no_grad():
        changed = CHANGES[change](tuned)
    sym = iw.symmetries(a, x)
    b = sym.act(sym.random(seed=2), tuned) if moved else tuned
    found = same(a, b, x, sym)
    assert found.verdict == RELATED and not found, str(found)
    # a moved batch norm is compared folded: the gain multiplies the mean, and so moves the bias
    folded = {
        n.replace("weight", "bias") for n in changed if moved and change in ("norms", "few_gains") and name == "cnn"
    }
    assert changed <= set(found.differing) <= changed | folded, found.summary()
    assert sum(name in found.summary() for name in changed) >= min(len(changed), 12)
    assert ", ".join(found.differing) == found.to_frame()["differing"][0]
    assert Match.from_dict(found.to_dict()).to_dict() == found.to_dict()


@pytest.mark.parametrize("name", MAKERS)
def test_copies_rounded_or_not_differ_in_nothing(name):
    a, x = MAKERS[name][0](), inputs(name)
    sym = iw.symmetries(a, x)
    twin = sym.act(sym.random(seed=2), a)
    for b in (twin, copy.deepcopy(twin).float().double(), copy.deepcopy(twin).bfloat16().double()):
        found = same(a, b, x, sym)
        assert found.verdict == SAME and not found.differing, found.summary()
    partly = copy.deepcopy(twin)  # as casts do that keep norms in full precision
    for m in partly.modules():
        if isinstance(m, nn.Linear | nn.Conv2d):
            m.bfloat16().double()
    assert same(a, partly, x, sym).verdict == SAME


@pytest.mark.parametrize("name", MAKERS)
def test_independent_networks_are_different_and_share_no_tensor(name):
    x = inputs(name)
    for seed in (1, 2):
        found = same(MAKERS[name][0](), MAKERS[name][0](seed), x)
        assert found.verdict == DIFFERENT and not found.differing, str(found)


@pytest.mark.parametrize("name", MAKERS)
def test_a_head_with_another_number_of_classes(name):
    a, x = MAKERS[name][0](), inputs(name)
    sym = iw.symmetries(a, x)
    b = MAKERS[name][0](1, classes=7)
    twin = sym.act(sym.random(seed=2), a)
    ours = {n: t for n, t in twin.state_dict().items() if t.shape == b.state_dict()[n].shape}
    b.load_state_dict(ours, strict=False)
    found = same(a, b, x)
    assert found.verdict == RELATED, str(found)
    replaced = set(a.state_dict()) - set(ours)
    assert set(found.differing) == replaced and set(found.differing.values()) == {float("inf")}
    unrelated = same(a, MAKERS[name][0](1, classes=7), x)
    assert unrelated.verdict == DIFFERENT and "has shape" in unrelated.reason and unrelated.transformation is None


def test_training_all_layers_names_all_that_moved():
    a, x = mlp(), inputs("mlp")
    b = copy.deepcopy(a)
    torch.manual_seed(3)
    shaken(b, 0.1, torch.std)
    sym = iw.symmetries(a, x)
    found = same(a, sym.act(sym.random(seed=2), b), x, sym)
    assert found.verdict == RELATED and "residual" in found.reason
    assert set(found.differing) == {n for n, _ in a.named_parameters()}


@pytest.mark.parametrize("op", ["leaky_relu", "tanh"])
def test_without_a_rule_it_cannot_be_told(op, monkeypatch):
    layers = {"leaky_relu": nn.LeakyReLU, "tanh": nn.Tanh}

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 12), layers[op](), nn.Linear(12, 9), layers[op](), nn.Linear(9, 3)).double()

    a, x = make(0), inputs("mlp")
    sym = iw.symmetries(a, x)
    twin = sym.act(sym.random(seed=1), a)
    assert same(a, twin, x) and same(a, make(1), x).verdict == DIFFERENT
    monkeypatch.setattr("intertwine.symmetry.detection.rules.measured", registry.unknown)
    blind = iw.symmetries(a, x)
    assert blind.unknown_ops and not blind.spaces
    found = same(a, twin, x)
    assert found.verdict == UNTOLD and "want of a rule" in found.reason
    with pytest.raises(ValueError, match="verdict must be decided for a match"):
        bool(found)
    assert same(a, copy.deepcopy(a), x).verdict == SAME  # what agrees as it stands needs no symmetry
    # the last bias is of known symmetry and tells these apart
    assert same(a, make(1), x).verdict == DIFFERENT


def branching(seed, gate):
    """One of two layers is run; the sign of a weight says which."""
    torch.manual_seed(seed)
    return Made(
        lambda m, x: m.out((m.first if (m.gate * x.square().sum()).item() > 0 else m.second)(x).relu()),
        gate=nn.Parameter(torch.tensor(float(gate))), first=nn.Linear(4, 8), second=nn.Linear(4, 8),
        out=nn.Linear(8, 3),
    )  # fmt: skip


def test_runs_on_different_paths_cannot_be_told_apart():
    x, a = torch.randn(5, 4), branching(0, gate=1)
    far = same(a, branching(1, gate=-1), x)
    assert far.verdict == UNTOLD
    assert far.reason.endswith("but the runs took different paths")
    assert same(a, branching(1, gate=1), x).verdict == DIFFERENT  # one path: the symmetry of both is known
    assert same(a, copy.deepcopy(a), x)


def test_a_copy_that_was_sent_on_another_path_is_not_the_same():
    x, a = torch.randn(5, 4), branching(0, gate=1)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.gate.neg_()
    found = same(a, b, x)
    assert found.verdict == RELATED and not found and found.differing.keys() == {"gate"}


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_one_edited_weight_is_seen(name, precision):
    """No cast moves one weight by a third of its size, whatever the other weights of its tensor do."""
    a, x = MAKERS[name][0](), inputs(name)
    sym = iw.symmetries(a, x)
    b = sym.act(sym.random(seed=1), a).to(precision).double()
    assert same(a, b, x, sym).verdict == SAME
    edited, weight = max(b.named_parameters(), key=lambda entry: entry[1].numel())
    with torch.no_grad():
        weight.view(-1)[weight.abs().argmax()] *= 1.3
    found = same(a, b, x, sym)
    assert found.verdict == RELATED
    assert edited in found.differing


class Experts(nn.Module):
    """A mixture of modules in a list: no space holds their order, which a router follows."""

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.read, self.route, self.write = nn.Linear(6, 24), nn.Linear(24, 6), nn.Linear(24, 5)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 24)) for _ in range(6)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x).tanh()
        shares = self.route(h).softmax(-1)
        return self.write(h + sum(shares[..., k, None] * expert(h) for k, expert in enumerate(self.experts)))


def test_copies_whose_modules_stand_in_another_order_are_no_strangers():
    a, x = Experts().double(), torch.randn(4, 6, dtype=torch.float64)
    b = copy.deepcopy(a)
    order = [3, 0, 4, 1, 5, 2]
    b.experts = nn.ModuleList(b.experts[k] for k in order)
    b.route.weight.data, b.route.bias.data = b.route.weight.data[order], b.route.bias.data[order]
    assert torch.allclose(a(x), b(x))
    sym = iw.symmetries(a, x)
    found = same(a, b, x, sym)
    assert found.verdict == UNTOLD and "more moved than the symmetry knows" in found.reason
    assert not {"read.weight", "write.weight"} & set(found.differing)
    b.write.bias.data += 0.1
    assert same(a, b, x, sym).verdict == RELATED
    assert same(a, Experts(1).double(), x, sym).verdict == DIFFERENT


def test_a_table_that_two_strangers_share_makes_them_no_relatives():
    """Sinusoids of positions, a parameter that starts as the same numbers everywhere."""

    def placed(seed: int):
        torch.manual_seed(seed)
        angles = torch.arange(8.0)[:, None] / 10 ** torch.linspace(0, 2, 8)
        places = nn.Parameter(torch.cat([angles.sin(), angles.cos()], 1))
        return Made(lambda m, x: m.body(m.read(x) + m.places), places=places, read=nn.Linear(6, 16), body=mlp_of(16))

    def mlp_of(width: int) -> nn.Module:
        layers = [m for _ in range(4) for m in (nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, width), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(width, 3))

    a, b = (placed(seed).double() for seed in (0, 1))
    assert same(a, b, torch.zeros(2, 8, 6, dtype=torch.float64)).verdict == DIFFERENT


def test_tensors_that_start_as_the_same_numbers_make_no_relatives():
    """Decays by channel, as in RWKV, in as many tensors as there are weights that training drew; states, positions."""

    class Decaying(nn.Module):
        def __init__(self, seed: int):
            super().__init__()
            torch.manual_seed(seed)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
            self.decays = nn.ParameterList(torch.linspace(0.1, 2, 8) * k for k in range(1, 5))
            self.states = nn.Parameter(torch.arange(1, 9).log().expand(8, 8).clone())  # as in Mamba: equal rows
            angles = torch.arange(16)[:, None] / 10_000 ** torch.linspace(0, 1, 4)
            self.positions = nn.Parameter(torch.stack((angles.sin(), angles.cos()), -1).flatten(1))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.positions[: len(x)]
            for layer, decay in zip(self.layers, self.decays):
                x = decay * layer(x).tanh()
            return x + x.tanh() @ self.states.T

    a, b = (Decaying(seed).double() for seed in (0, 1))
    assert same(a, b, torch.zeros(2, 8, dtype=torch.float64)).verdict == DIFFERENT


@pytest.mark.parametrize("share", [0.003, 0.1])
@pytest.mark.parametrize("moved", [False, True])
def test_one_weight_edited_by_a_small_share_of_itself_is_seen(share, moved):
    """Rounding is as large a share of the other weights of its row, however small the edit beside a cast."""
    torch.manual_seed(0)
    a, x = (
        nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 20)),
        torch.randn(4, 20),
    )
    sym = iw.symmetries(a, x)
    for number in (0, 2, 4):
        b = copy.deepcopy(a)
        with torch.no_grad():
            weight = b[number].weight.view(-1)
            weight[weight.abs().argsort()[int(0.6 * len(weight))]] *= 1 + share
        found = same(a, sym.act(sym.random(seed=1), b) if moved else b, x, sym)
        assert found.verdict == RELATED and (share < 0.1 or f"{number}.weight" in found.differing)
    assert same(a, sym.act(sym.random(seed=1), a).bfloat16().float(), x, sym).precision == "bfloat16"


@pytest.mark.parametrize("moved", [False, True])
def test_a_cast_of_rows_most_of_which_it_leaves_alone_is_rounding(moved):
    """Weights beside exact ones are rounded alone; one step between networks of half precision is an edit."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 5)).bfloat16().float()
    with torch.no_grad():
        for layer in (a[0], a[2], a[4]):
            layer.weight[:, :2] *= 1 + torch.rand(len(layer.weight), 2) / 2
    x, b = torch.randn(4, 6), copy.deepcopy(a).bfloat16().float()
    sym = iw.symmetries(a, x)
    g = sym.random(seed=1) if moved else sym.identity()
    assert same(a, sym.act(g, b), x, sym).precision == "bfloat16"
    stepped = copy.deepcopy(b)
    with torch.no_grad():
        stepped[2].weight[3, 5] *= 1 + 2**-7
        stepped[2].weight.copy_(stepped[2].weight.bfloat16())
    found = same(b, sym.act(g, stepped), x, sym)
    assert found.verdict == RELATED and set(found.differing) == {"2.weight"}


def test_units_moved_behind_a_shuffle_are_told():
    """A shuffle of channels joins two factors of an axis to one, whose units move as they like."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.ChannelShuffle(4), nn.Conv2d(32, 32, 3, groups=4), nn.ReLU()
    a, x = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)), torch.randn(4, 3, 8, 8)
    b, orders = copy.deepcopy(a), torch.stack([torch.randperm(8) for _ in range(4)])  # of the inputs of each group
    read = torch.arange(32).view(4, 8).T.reshape(4, 8)  # (group of layer 3, its input): the output of layer 0
    with torch.no_grad():
        b[3].weight.copy_(torch.stack([a[3].weight[k, orders[k // 8]] for k in range(32)]))
        for part, old in zip(b[0].parameters(), a[0].parameters()):
            part[read.flatten()] = old[read.gather(1, orders).flatten()]
    assert torch.allclose(a(x), b(x), atol=1e-6)
    assert same(a, b, x).verdict == SAME


def test_changes_that_the_example_does_not_show_leave_networks_related():
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), torch.arange(20)[None]
    b = copy.deepcopy(a)
    b[0].weight.data[30:].normal_()  # rows that no token of the example reads
    assert torch.equal(a(x), b(x))
    found = same(a, b, x)
    assert found.verdict == RELATED and set(found.differing) == {"0.weight"}
