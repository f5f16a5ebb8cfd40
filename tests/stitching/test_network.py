"""The stitched network: any tap, any batch size, A's early and B's late part, neither of them touched."""

import copy

import pytest
import torch
from made import Function, Made
from stitching_models import KINDS, ResidualMlp, cnn, fingerprint, is_cut_vertex, make, mlp, two_heads
from torch import nn

from intertwine.errors import CaptureError
from intertwine.features import layers
from intertwine.groups import PositiveMonomial
from intertwine.programs import Part, capture_dynamic, flat_inputs
from intertwine.programs.calls import PerExample
from intertwine.stitching import Pair, Stitched, family_of, recalibrate
from intertwine.stitching.layer import Fixed
from intertwine.stitching.pair import Crossing
from intertwine.stitching.penalty import accuracies
from intertwine.stitching.stitched import relate


def identity(cut):
    skips = [Fixed(torch.eye(c.c_out, c.c_in, dtype=torch.float64), channel_dim=c.channel_dim) for c in cut.mapped]
    return cut.stitch(skips[0], skips[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", ["a", "mapped", "b"])
def test_a_network_stitched_to_itself_is_itself_at_every_layer_and_batch_size(kind, skip):
    model, x = make(kind)
    pair = Pair(model, model, x)
    taps = pair.layers()
    assert len(taps) >= 5
    for tap in taps:
        net = identity(pair.cut(tap, skip))
        for n in (1, 4, 9):
            torch.testing.assert_close(net(x[:n]), model(x[:n]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_with_features_can_be_cut(kind):
    model, x = make(kind)
    pair = Pair(model, model, x)
    names = {p.name for p in layers(model, x) if p.name and not p.name.startswith("drop")}
    assert set(pair.layers()) >= names - {"drop"}


def replaced(a, b, tap, x):
    """B's output where its module gives what A's gives."""
    kept = []
    hook = a.get_submodule(tap).register_forward_hook(lambda *args: kept.append(args[2].clone()))
    a(x)
    hook.remove()
    hook = b.get_submodule(tap).register_forward_hook(lambda *_: kept[0])
    output = b(x)
    hook.remove()
    return output


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_cut_is_a_and_behind_it_is_b(kind):
    """Against running the modules by hand: at a cut vertex, B's output when its tap is replaced by A's."""
    (a, x), (b, _) = make(kind, 0), make(kind, 5)
    pair = Pair(a, b, x)
    for tap in pair.layers():
        cut = pair.cut(tap, "b")
        found = identity(cut)(x)
        torch.testing.assert_close(found, replaced(a, b, tap, x), rtol=1e-11, atol=1e-11)
        assert cut.inside_block != is_cut_vertex(pair.b, tap)


def test_which_variant_of_the_skip_is_built_makes_a_difference_only_inside_blocks():
    (a, x), (b, _) = make("residual", 0), make("residual", 5)
    pair = Pair(a, b, x)
    assert [tap for tap in pair.layers() if pair.cut(tap).inside_block] == [
        "inner.0", "relu.1", "outer.0", "relu.2", "inner.1", "relu.3", "outer.1", "relu.4",
    ]  # fmt: skip
    inside, outside = ({s: identity(pair.cut(tap, s))(x) for s in ("a", "b")} for tap in ("relu.1", "relu.0"))
    assert (inside["a"] - inside["b"]).abs().max() > 0.01
    assert torch.equal(outside["a"], outside["b"])


def test_a_skip_with_weights_is_a_s_too_although_it_runs_after_the_cut():
    (a, x), (b, _) = make("projected", 0), make("projected", 5)
    cut = Pair(a, b, x).cut("relu2")
    mixed = copy.deepcopy(b)
    for name in ("conv1", "bn1", "conv2", "bn2", "skip", "skip_bn"):
        setattr(mixed, name, getattr(a, name))
    torch.testing.assert_close(identity(cut)(x), mixed(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["cnn", "projected"])
def test_the_tail_in_training_mode_is_the_model_s_own(kind):
    """Batch statistics, their updates, and what evaluation makes of them afterwards."""
    model, x = make(kind)
    net = identity(Pair(model, model, x).cut("0" if kind == "cnn" else "conv1"))
    net.tail_norm = "train"
    net.train()
    twin = copy.deepcopy(model).train()
    for _ in range(3):
        torch.testing.assert_close(net(x), twin(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net.eval()(x), twin.eval()(x), rtol=1e-12, atol=1e-12)


def test_the_trunk_never_trains_and_the_tail_only_if_asked():
    (a, x), (b, _) = make("cnn", 0), make("cnn", 5)
    cut = Pair(a, b, x).cut("2")
    for tail_norm, moves in (("eval", False), ("train", True)):
        net = cut.stitch(Fixed(torch.eye(4, dtype=torch.float64)), tail_norm=tail_norm).train()
        trunk, tail = ({k: v.clone() for k, v in part.state_dict().items()} for part in (net.trunk, net.tail))
        net(x)
        assert not net.trunk.training and not net.trunk.a.training
        assert all(torch.equal(v, net.trunk.state_dict()[k]) for k, v in trunk.items())
        assert any(not torch.equal(v, net.tail.state_dict()[k]) for k, v in tail.items()) == moves


def test_neither_network_is_touched():
    (a, x), (b, _) = make("projected", 0), make("projected", 5)
    a.train()
    before, random = (fingerprint(a), fingerprint(b)), torch.get_rng_state()
    cut = Pair(a, b, x).cut("relu2")
    net = cut.stitch(family_of("full", 6, 6, bias=True).double(), tail_norm="train").train()
    assert torch.equal(torch.get_rng_state(), random)
    optimizer = torch.optim.SGD(net.trainable(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
    recalibrate(net, [x])
    assert (fingerprint(a), fingerprint(b)) == before
    assert all(p.grad is None for p in [*a.parameters(), *b.parameters()])


def test_models_that_are_trained_on_later_do_not_change_what_was_stitched():
    (a, x), (b, _) = make("cnn", 0), make("cnn", 5)
    net = identity(Pair(a, b, x).cut("2"))
    before = net(x)
    with torch.no_grad():
        for p in [*a.parameters(), *b.parameters()]:
            p.mul_(2)
        b[4].running_mean.add_(1)
    assert torch.equal(net(x), before)


def test_gradients_reach_the_layer_and_nothing_else():
    (a, x), (b, _) = make("tokens", 0), make("tokens", 5)
    layer = family_of("full", 8, 8, channel_dim=-1).double()
    net = Pair(a, b, x).cut("norm").stitch(layer).train()
    assert {id(p) for p in net.parameters()} == {id(p) for p in layer.parameters()}
    weight = next(layer.parameters())

    def loss():
        return net(x).square().sum()

    (grad,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        weight[1, 2] += 1e-6
        up = loss()
        weight[1, 2] -= 2e-6
        assert (up - loss()).item() / 2e-6 == pytest.approx(grad[1, 2].item(), rel=1e-5)


def test_forks_share_weights_and_keep_their_own_statistics():
    model, x = make("cnn")
    cut = Pair(model, model, x).cut("0")
    one, two = identity(cut), identity(cut)
    one.tail.train()(model[0](x))
    moved = [k for k, v in one.tail.state_dict().items() if not torch.equal(v, two.tail.state_dict()[k])]
    assert len(moved) == 5  # two batch norms and the count of batches
    shared = [k for k in one.tail.state_dict() if k not in moved]
    assert all(one.tail.get_buffer(k).data_ptr() == two.tail.get_buffer(k).data_ptr() for k in shared)


def test_one_run_of_the_trunk_serves_many_tails():
    (a, x), (b, _) = make("projected", 0), make("projected", 5)
    cut = Pair(a, b, x).cut("relu2")
    nets = [cut.stitch(Fixed(PositiveMonomial(6).random(generator=i).matrix())) for i in range(3)]
    crossing = cut.trunk(x)
    kept = [c.clone() for c in crossing]
    for net in nets:
        torch.testing.assert_close(net.finish(crossing), net(x))
    assert all(torch.equal(c, k) for c, k in zip(crossing, kept))  # in-place ReLUs of B write nothing


def test_evaluated_maps_are_the_rounded_ones():
    (a, x), (b, _) = make("residual", 0), make("residual", 5)
    cut = Pair(a, b, x).cut("relu.1", "mapped")
    net = cut.stitch(family_of("g_relu", 6, 6).double(), [family_of("softsort", 6, 6, seed=1).double()])
    torch.testing.assert_close(net.tail(*net.evaluated()(net.trunk(x)))[0], net.eval()(x))
    assert (net.train()(x) - net.eval()(x)).abs().max() > 1e-3


def test_another_architecture_at_a_cut_vertex():
    (a, x), (b, _) = make("cnn", 0), make("projected", 5)
    cut = Pair(a, b, x).cut(("5", "relu1"))
    assert cut.tap == Crossing(8, 4, 1)
    matrix = torch.randn(4, 8, dtype=torch.float64)
    expected = b.relu3(b.bn3(b.conv3(b.relu2(b.bn2(b.conv2(y := Fixed(matrix)(a[:6](x))))))) + b.skip_bn(b.skip(y)))
    expected = b.head(b.pool(expected).flatten(1))
    torch.testing.assert_close(cut.stitch(Fixed(matrix))(x), expected, rtol=1e-12, atol=1e-12)


def test_maps_of_another_size_are_interpolated_and_tokens_are_positions():
    model, x = make("cnn")
    smaller = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    cut = Pair(model, smaller, x).cut(("2", "1"))
    assert cut.trunk.relation.kind == "resize"
    ours = nn.functional.interpolate(model[:3](x), (4, 4), mode="bilinear", antialias=True)
    torch.testing.assert_close(identity(cut)(x), smaller[2:](ours))
    tokens = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(2), nn.Flatten(), nn.Linear(32, 3)).double()
    points = {p.name: p for p in layers(make("tokens")[0], x)}
    maps = {p.name: p for p in layers(tokens, x)}
    with pytest.raises(ValueError, match=r"must be laid out like B's.*\(8, 2, 2\) at '0' of A and \(5, 8\)"):
        relate(maps["0"], points["norm"])  # four positions, and four with a class token


def test_positions_of_tokens_and_maps_are_the_same():
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    a = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2)).double()
    b = nn.Sequential(
        Function(lambda x: x.flatten(2).transpose(1, 2)), nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2)
    ).double()
    there, back = Pair(a, b, x).cut(("1", "2")), Pair(b, a, x).cut(("2", "1"))
    assert (there.trunk.relation.kind, back.trunk.relation.kind) == ("to_tokens", "to_maps")
    assert (there.tap.channel_dim, back.tap.channel_dim) == (-1, 1)
    torch.testing.assert_close(identity(there)(x), b[3:](a[:2](x).flatten(2).transpose(1, 2)))
    torch.testing.assert_close(identity(back)(x), a[2:](b[:3](x).transpose(1, 2).unflatten(2, (4, 4))))


def test_a_model_with_several_outputs_is_stitched_to_its_first():
    torch.manual_seed(0)
    model, x = two_heads().double(), torch.randn(5, 4, dtype=torch.float64)
    pair = Pair(model, model, x)
    torch.testing.assert_close(identity(pair.cut("relu"))(x), model(x)["logits"])
    with pytest.raises(ValueError, match=r"B's output must depend on the layer. Got 'aux'"):
        pair.cut("aux")
    assert "aux" not in pair.layers()


def test_what_the_input_alone_determines_may_cross_any_cut():
    torch.manual_seed(0)
    masked = Made(
        lambda m, x: m.second(m.relu(m.first(x))) * (x[:, :1] > 0), first=nn.Linear(4, 6), relu=nn.ReLU(),
        second=nn.Linear(6, 3),
    )  # fmt: skip
    a, b, x = mlp().double(), masked.double(), torch.randn(9, 4, dtype=torch.float64)
    cut = Pair(a, b, x).cut(("1", "relu"))
    assert not cut.inside_block
    matrix = torch.randn(6, 7, dtype=torch.float64)
    torch.testing.assert_close(cut.stitch(Fixed(matrix))(x), b.second(a[:2](x) @ matrix.T) * (x[:, :1] > 0))


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("relu.9", "layers must be names of modules that run. Got 'relu.9'. Close names: 'relu"),
        ("inner", "layers must give features whose first axis is the batch"),
        (("relu.0", "relu.1"), "must be the same layer of the same architecture in A"),
        (("stem", "relu.0", "head"), r"at must be a layer, or \(layer of A, layer of B\)"),
        (("head", "stem"), None),
    ],
)
def test_layers_that_cannot_be_cut(at, message):
    model, x = make("residual")
    pair = Pair(model, model, x)
    if message is None:
        assert pair.cut(at).tap == Crossing(3, 6, 1)  # late to early is possible; widths are the layer's business
        return
    with pytest.raises(ValueError, match=message):
        pair.cut(at)


def test_taps_in_the_wrong_order():
    (a, x), (b, _) = make("cnn", 0), make("projected", 5)
    with pytest.raises(ValueError, match=r"the other way round. Use \('2', 'relu1'\)"):
        Pair(a, b, x).cut(("relu1", "2"))


def test_skips_of_another_width_need_a_map():
    (a, x), b = make("residual"), ResidualMlp(8).double()
    pair = Pair(a, b, x)
    with pytest.raises(ValueError, match=r"skip connections must have the shapes of B's. Got \(6,\) and \(8,\)"):
        pair.cut("relu.1")
    cut = pair.cut("relu.1", "mapped")
    assert cut.mapped == (Crossing(6, 8, 1), Crossing(6, 8, 1))
    assert identity(cut)(x).shape == (9, 3)


def test_arguments_are_checked():
    (model, x), (other, _) = make("cnn"), make("cnn", 3)
    with pytest.raises(TypeError, match=r"b must be a torch.nn.Module. Got int"):
        Pair(model, 3, x)
    cut = Pair(model, other, x).cut("2")
    with pytest.raises(ValueError, match=r"layer must map 4 to 4 channels along axis 1. Got one for 5 to 4"):
        cut.stitch(Fixed(torch.zeros(4, 5)))
    with pytest.raises(ValueError, match="skip_layers must be 0 here"):
        cut.stitch(Fixed(torch.eye(4)), [Fixed(torch.eye(4))])
    with pytest.raises(ValueError, match='tail_norm must be "eval" or "train"'):
        Stitched(cut.trunk, Fixed(torch.eye(4)), cut.tail, tail_norm="off")


def test_models_that_depend_on_the_batch_are_refused():
    x = torch.randn(9, 4, dtype=torch.float64)
    for extra, message in (
        (lambda x: x - x.mean(0) if len(x) > 2 else x, "must make the same calls for every number of examples"),
        (lambda x: x + torch.rand(4, dtype=x.dtype), "must use the same constants for every batch"),
        (lambda x: x * min(x.shape[0], 4), "must do the same with 5 examples as with 2"),
    ):
        with pytest.raises(CaptureError, match=message):
            capture_dynamic(nn.Sequential(mlp().double()[:2], nn.Linear(7, 4).double(), Function(extra)), x)


def test_writes_into_parts_of_activations_are_refused():
    def write(x):
        y = x.clone()
        y[:, :2] = 0
        return y

    x = torch.randn(9, 4, dtype=torch.float64)
    with pytest.raises(CaptureError, match="must not write into parts of its activations"):
        capture_dynamic(nn.Sequential(nn.Linear(4, 4).double(), Function(write)), x)


def test_whole_numbers_that_grow_with_the_batch_are_found():
    def reshape(x):
        n = x.shape[0]
        return x.view(2 * n, 2).repeat(1, 3).reshape(n, 12) + torch.ones(n, 12, dtype=x.dtype)

    model, x = nn.Sequential(nn.Linear(4, 4), Function(reshape)).double(), torch.randn(2, 4, dtype=torch.float64)
    program = capture_dynamic(model, x)
    assert PerExample(0, 2) in next(c for c in program.calls if c.op == "aten::view").growing["size"]
    part = Part(program)
    y = torch.randn(11, 4, dtype=torch.float64)
    torch.testing.assert_close(part(y)[0], model(y))


def test_constants_that_grow_with_the_batch_are_made_anew():
    """Positions in the batch, a mask repeated for every example, as transformers have them."""

    def pick(x):
        n = x.shape[0]
        mask = torch.tensor([1.0, 2.0], dtype=x.dtype).repeat(n)
        x = (x.reshape(2 * n, 2) * mask[:, None]).reshape(n, 4)
        return x[torch.arange(n), x.argmax(1)][:, None] + x[torch.arange(n - 1, -1, -1) * 0 + torch.arange(n)]

    model, x = nn.Sequential(nn.Linear(4, 4), Function(pick)).double(), torch.randn(2, 4, dtype=torch.float64)
    program = capture_dynamic(model, x)
    assert len(program.growing) >= 2
    part = Part(program)
    for n in (1, 7):
        y = torch.randn(n, 4, dtype=torch.float64)
        torch.testing.assert_close(part(y)[0], model(y))


def test_networks_on_several_devices_are_refused():
    with pytest.raises(ValueError, match=r"both models must be on one device. Got cpu and meta"):
        Pair(cnn(), cnn().to("meta"), torch.randn(3, 3, 8, 8))


def test_transformers_of_hugging_face_are_cut_at_every_layer():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "hidden_size": 8}
    vit = transformers.ViTConfig(image_size=8, patch_size=4, **small)
    bert = transformers.BertConfig(vocab_size=20, **small)
    ids = torch.randint(1, 20, (6, 5))
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    for model, batch in (
        (transformers.ViTForImageClassification(vit), torch.randn(6, 3, 8, 8)),
        (transformers.BertForSequenceClassification(bert), {"input_ids": ids, "attention_mask": mask}),
    ):
        model = model.double().eval()
        batch = batch.double() if isinstance(batch, torch.Tensor) else batch
        pair = Pair(model, model, batch)
        truth = (model(**batch) if isinstance(batch, dict) else model(batch)).logits
        assert len(pair.layers()) > 15
        for tap in pair.layers():
            torch.testing.assert_close(identity(pair.cut(tap))(*flat_inputs(batch, pair.a)), truth)


def test_keys_of_batches_have_no_order():
    torch.manual_seed(0)
    run = lambda m, left, right: m.out(torch.relu(m.left(left) - 2 * m.right(right)))
    model = Made(run, left=nn.Linear(4, 8), right=nn.Linear(4, 8), out=nn.Linear(8, 3)).double().eval()
    x = {key: torch.randn(6, 4, dtype=torch.float64) for key in ("left", "right")}
    itself = identity(Pair(model, model, x).cut("left"))
    labels = model(**x).argmax(1)
    turned = {"right": x["right"], "left": x["left"], "labels": labels}
    assert accuracies([itself], [{**x, "labels": labels}, turned]) == [1.0]
    for wrong in ({"left": x["left"]}, {**x, "middle": x["left"]}):
        with pytest.raises(ValueError, match=r"the keys of the first one, 'left', 'right'\. Got 'left'"):
            accuracies([itself], [{**wrong, "labels": labels}])
