"""Training of many layers at once: against a slow loop, alone or together, interrupted, diverging; choosing alpha."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from stitching_models import cnn, fingerprint

from intertwine.errors import CheckpointError
from intertwine.stitching import Epoch, Pair, Recipe, StitchOptions, family_of, recalibrate, stitch, train_layers
from intertwine.stitching.choose_alpha import InMemory, choose_alpha, split_examples
from intertwine.stitching.options import RECIPES
from intertwine.stitching.training_state import TrainingState

FAMILIES = ["full", "rank-2", "lasso", "g_relu", "softsort", "orthogonal", "identity"]
QUICK = Recipe(epochs=3, learning_rate=0.05, head_start=1, batch_size=8)


def models():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cnn().eval(), cnn().eval()


def data(n=40, size=8, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, 8, 8, generator=generator)
    return InMemory((x,), x.mean((2, 3)).argmax(1), size, shuffle=True)


@pytest.fixture
def cut():
    a, b = models()
    return Pair(a, b, data().inputs[0][:4]).cut("2")


def stitched(cut, *families, tail_norm="eval", **settings):
    return [cut.stitch(family_of(f, cut.tap.c_in, cut.tap.c_out, **settings), tail_norm=tail_norm) for f in families]


def parameters(network):
    return [p.detach().clone() for p in network.trainable()]


@pytest.mark.parametrize("momentum", [0.9, 0.0], ids=["v1", "v2"])
@pytest.mark.parametrize("family", ["full", "lasso", "g_relu", "orthogonal"])
def test_against_a_slow_loop(cut, family, momentum):
    """Whole stitched networks, one batch after another, momentum written out."""
    recipe = replace(QUICK, momentum=momentum, head_start=0, keep="last")
    fast, slow = stitched(cut, family, family)
    loader = data()
    loader.shuffle = False
    train_layers([fast], loader, recipe)
    slow.train()
    velocity = [torch.zeros_like(p) for p in slow.trainable()]
    for _ in range(recipe.epochs):
        for x, y in loader:
            loss = F.cross_entropy(slow(x), y) + slow.layer.regulariser()
            gradients = torch.autograd.grad(loss, slow.trainable(), materialize_grads=True)
            with torch.no_grad():
                for p, v, g in zip(slow.trainable(), velocity, gradients):
                    v.mul_(momentum).add_(g)
                    p.sub_(recipe.learning_rate * v)
            slow.layer.after_step(recipe.learning_rate)
    for p, q in zip(fast.trainable(), slow.trainable()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_a_batch_whose_labels_are_all_ignored_teaches_nothing(cut):
    """Its mean loss is no number, which must not stop a layer."""
    one, two = stitched(cut, "full", "full")
    loader = list(data())
    (with_it,) = train_layers([one], [*loader, (loader[0][0], torch.full((8,), -100))], QUICK, recalibration=False)
    (without,) = train_layers([two], loader, QUICK, recalibration=False)
    assert all(torch.equal(p, q) for p, q in zip(parameters(one), parameters(two)))
    assert with_it.history == without.history and with_it.start_loss == without.start_loss


@pytest.mark.parametrize("tail_norm", ["eval", "train"])
def test_together_as_alone(cut, tail_norm):
    together = stitched(cut, *FAMILIES, tail_norm=tail_norm)
    train_layers(together, data(), QUICK)
    for family, network in zip(FAMILIES, together):
        (alone,) = stitched(cut, family, tail_norm=tail_norm)
        train_layers([alone], data(), QUICK)
        assert all(torch.equal(p, q) for p, q in zip(parameters(alone), parameters(network))), family


def test_the_trunk_runs_once_for_all(cut):
    count = []
    handle = cut.trunk.register_forward_hook(lambda *_: count.append(1))
    loader = data()
    train_layers(stitched(cut, *FAMILIES), loader, replace(QUICK, keep="last"))
    assert len(count) == QUICK.epochs * len(loader)
    count.clear()
    train_layers(stitched(cut, *FAMILIES), loader, replace(QUICK, judged=16))
    handle.remove()
    judged = (QUICK.epochs + 1) * 2 * 2  # the start and every epoch, two batches, once for batch norm and once for loss
    assert len(count) == QUICK.epochs * len(loader) + judged


def test_nothing_else_changes():
    a, b = models()
    before, numbers = (fingerprint(a), fingerprint(b)), torch.get_rng_state()
    cut = Pair(a, b, data().inputs[0][:4]).cut("2")
    networks = stitched(cut, "g_relu", "softsort", tail_norm="train")
    statistics = cut.tail.statistics()
    train_layers(networks, data(), QUICK)
    assert (fingerprint(a), fingerprint(b)) == before
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(v, cut.tail.statistics()[k]) for k, v in statistics.items())
    assert not any(p.grad is not None for model in (a, b) for p in model.parameters())


def test_batch_norm_of_the_tail_in_both_modes(cut):
    for mode, moved in (("eval", False), ("train", True)):
        (network,) = stitched(cut, "full", tail_norm=mode)
        before = network.tail.statistics()
        train_layers([network], data(), replace(QUICK, epochs=1))
        after = network.tail.statistics()
        assert any(not torch.equal(before[k], after[k]) for k in before) == moved


def test_a_last_batch_of_one_is_left_out_where_batch_norm_would_fail(cut):
    networks = stitched(cut, "full", tail_norm="train")
    (done,) = train_layers(networks, data(n=17), replace(QUICK, epochs=1))
    assert len(done.history) == 1


def test_seeds_give_orders(cut):
    results = []
    for seed in (0, 0, 1):
        (network,) = stitched(cut, "full")
        train_layers([network], data(), QUICK, seed=seed)
        results.append(parameters(network)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_history_and_head_start(cut):
    (network,) = stitched(cut, "g_relu")
    (done,) = train_layers([network], data(), replace(QUICK, epochs=2, head_start=2))
    assert torch.equal(network.layer.scale, torch.ones(4))
    assert network.layer.scale.requires_grad
    assert not network.training
    assert done.stopped_at is None
    assert [e.epoch for e in done.history] == [1, 2]
    for e in done.history:
        assert 0 <= e.accuracy <= 1
        assert e.change > 0
        assert 0 <= e.moved <= 1
        assert e.doubly_stochastic_error < 0.1
        assert e.regulariser < 0
    (full,) = stitched(cut, "full")
    (done,) = train_layers([full], data(), Recipe(epochs=15, learning_rate=0.1))
    assert done.history[-1].loss < done.history[0].loss
    assert done.history[0].moved is None
    assert done.history[0].doubly_stochastic_error is None


def evaluated(network, loader):
    """Training loss of one network as it is evaluated, slowly: its own copy of everything, one batch after another."""
    twin = copy.deepcopy(network)
    recalibrate(twin, loader)
    with torch.no_grad():
        losses = [F.cross_entropy(twin.eval()(x), y, reduction="sum") for x, y in loader]
    return float(sum(losses)) / sum(len(y) for _, y in loader)


@pytest.mark.parametrize("family", ["g_relu", "full", "lasso-0.1"])
def test_the_best_map_as_evaluated_is_kept(cut, family):
    """Of the start and all epochs, on training data; a learning rate far too high must not cost what the start had."""
    loader, wild = data(), replace(QUICK, learning_rate=3.0 if family == "g_relu" else 0.3)
    loader.shuffle = False
    best, last = stitched(cut, family, family)
    start = evaluated(best, loader)
    (done,) = train_layers([best], loader, wild)
    (paper,) = train_layers([last], loader, replace(wild, keep="last"))
    found = [done.start_loss, *(e.evaluated_loss for e in done.history)]
    assert found[0] == pytest.approx(start, rel=1e-5)
    assert evaluated(best, loader) == pytest.approx(found[done.kept], rel=1e-5)
    assert evaluated(last, loader) == pytest.approx(found[-1], rel=1e-5)
    if family != "lasso-0.1":  # which weighs its penalty too
        assert found[done.kept] == min(found)
    assert (paper.kept, paper.start_loss, paper.history[0].evaluated_loss) == (None, None, None)


def test_lasso_is_judged_with_its_penalty(cut):
    """A small map may cost some loss; one that loses more than the penalty saves is not kept."""
    (network,) = stitched(cut, "lasso-3")
    run = TrainingState(network, None, history=[Epoch(i, 0.0, 0.0, 0.0, 0.0) for i in (1, 2)])
    assert network.layer.penalty() > 1
    run.judge(0, 1.0)
    with torch.no_grad():
        network.layer.weight.zero_()
    run.judge(1, 1.5)
    assert run.best["epoch"] == 1
    run.judge(2, 1.6)
    assert run.best["epoch"] == 1


def test_recipes_of_both_versions():
    assert RECIPES["v1"] == Recipe(20, 1e-3, 0.9, 10, 32)
    assert RECIPES["v2"] == Recipe(20, 1e-3, 0.0, 10, 32)
    assert {recipe.keep for recipe in RECIPES.values()} == {"best"}  # the papers' last epoch is an option


class Killed(Exception):
    pass


class Dying:
    """A loader that is killed in some batch of some pass."""

    def __init__(self, loader, passes, batch):
        self.loader, self.passes, self.batch = loader, passes, batch

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.passes -= 1
        for i, batch in enumerate(self.loader):
            if self.passes < 0 and i == self.batch:
                raise Killed
            yield batch


@pytest.mark.parametrize("tail_norm", ["eval", "train"])
def test_a_killed_run_goes_on_where_it_stood(cut, tmp_path, tail_norm):
    """The first two passes of `Dying` look at the first batch, and at the batches that maps are judged on."""
    state = tmp_path / "run.pt"
    undisturbed = stitched(cut, *FAMILIES, tail_norm=tail_norm)
    whole = train_layers(undisturbed, data(), QUICK)
    with pytest.raises(Killed):
        train_layers(stitched(cut, *FAMILIES, tail_norm=tail_norm), Dying(data(), 4, 2), QUICK, state=state)
    assert torch.load(state, weights_only=True)["epochs"] == 2
    resumed = stitched(cut, *FAMILIES, tail_norm=tail_norm)
    again = train_layers(resumed, data(), QUICK, state=state)
    for one, two, x, y in zip(undisturbed, resumed, whole, again):
        assert all(torch.equal(p, q) for p, q in zip(parameters(one), parameters(two)))
        assert (x.history, x.kept, x.start_loss) == (y.history, y.kept, y.start_loss)
    # a finished run is not done again
    before = parameters(resumed[0])
    train_layers(resumed, data(), QUICK, state=state)
    assert torch.equal(before[0], parameters(resumed[0])[0])


def test_state_of_another_run_is_refused(cut, tmp_path):
    state = tmp_path / "run.pt"
    train_layers(stitched(cut, "g_relu"), data(), replace(QUICK, epochs=1), state=state)
    for families, recipe in ((["full"], replace(QUICK, epochs=1)), (["g_relu"], QUICK)):
        with pytest.raises(CheckpointError, match="must be of the same run"):
            train_layers(stitched(cut, *families), data(), recipe, state=state)
    with pytest.raises(CheckpointError, match="must be of the same run"):
        train_layers(stitched(cut, "g_relu", alpha=0.5), data(), replace(QUICK, epochs=1), state=state)
    with pytest.raises(CheckpointError, match="another networks and data, inputs"):
        train_layers(stitched(cut, "g_relu"), data(seed=4), replace(QUICK, epochs=1), state=state)
    other = Pair(*reversed(models()), data().inputs[0][:4]).cut("2")
    with pytest.raises(CheckpointError, match="networks and data"):
        train_layers(stitched(other, "g_relu"), data(), replace(QUICK, epochs=1), state=state)
    before = Pair(*models(), data().inputs[0][:4]).cut("1")  # the same weights, but for an activation between the two
    with pytest.raises(CheckpointError, match="networks and data"):
        train_layers(stitched(before, "g_relu"), data(), replace(QUICK, epochs=1), state=state)
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="does not read"):
        train_layers(stitched(cut, "g_relu"), data(), replace(QUICK, epochs=1), state=state)


def test_state_of_another_start_is_refused(tmp_path):
    how = {"loader": data(), "method": replace(QUICK, epochs=1)}
    options = StitchOptions(start="random", state=tmp_path / "run.pt")
    stitch(*models(), "2", "full", seeds=[0, 1], options=options, **how)
    for seeds, changed in (([0, 2], options), ([0, 1], replace(options, start="direct"))):
        with pytest.raises(CheckpointError, match="with another"):
            stitch(*models(), "2", "full", seeds=seeds, options=changed, **how)


def test_a_run_goes_on_with_images_that_another_machine_normalised(cut, tmp_path):
    """Their last bits differ. Images mirrored, brighter by 1e-3 or in another order are other data."""
    state, once = tmp_path / "run.pt", replace(QUICK, epochs=1)
    train_layers(stitched(cut, "full"), data(), once, state=state)
    (whole,) = train_layers(stitched(cut, "full"), data(), once)

    def changed(change):
        loader = data()
        loader.inputs = (change(loader.inputs[0]),)
        return train_layers(stitched(cut, "full"), loader, once, state=state)

    noise = lambda x: x + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    for near in (noise, lambda x: x * (1 + 1e-6)):
        assert not torch.equal(near(data().inputs[0]), data().inputs[0])
        (again,) = changed(near)
        assert again.history == whole.history  # nothing was left to do
    for other in (lambda x: x.flip(-1), lambda x: x * 1.001, lambda x: x + 1e-3, lambda x: x.roll(1, 0)):
        with pytest.raises(CheckpointError, match="with another inputs"):
            changed(other)
    labels = data()
    labels.labels = labels.labels.roll(1)
    with pytest.raises(CheckpointError, match="with another networks and data"):
        train_layers(stitched(cut, "full"), labels, once, state=state)
    moved = models()
    with torch.no_grad():
        next(moved[0].parameters())[0].mul_(1 + 1e-6)
    other = Pair(*moved, data().inputs[0][:4]).cut("2")
    with pytest.raises(CheckpointError, match="with another networks and data"):
        train_layers(stitched(other, "full"), data(), once, state=state)


def test_a_diverging_layer_stops_alone_with_its_last_good_state(cut):
    good, bad = stitched(cut, "full", "full")
    with torch.no_grad():
        bad.layer.weight.fill_(1e38)  # finite, but not behind the next convolution
    before = parameters(bad)
    one, two = train_layers([good, bad], data(), QUICK)
    assert (one.stopped_at, two.stopped_at) == (None, 1)
    assert len(one.history) == 3
    assert two.history == ()
    assert torch.equal(before[0], parameters(bad)[0])


def test_nan_in_the_data_says_the_step(cut):
    loader = data()
    loader.shuffle = False
    loader.inputs[0][10] = torch.nan  # in the second of five batches
    (network,) = stitched(cut, "full")
    with pytest.raises(RuntimeError, match=r"full at step 2.*learning rate"):
        train_layers([network], loader, QUICK)
    (reference,) = stitched(cut, "full")
    loader.inputs = (loader.inputs[0][:8],)
    loader.labels = loader.labels[:8]
    train_layers([reference], loader, replace(QUICK, epochs=1))
    # the step on the first batch was the last whose loss was known to be finite: the state before it is kept
    (start,) = stitched(cut, "full")
    assert torch.equal(parameters(network)[0], parameters(start)[0])
    assert not torch.equal(parameters(reference)[0], parameters(start)[0])


def test_bad_input(cut):
    (network,) = stitched(cut, "full")
    other = Pair(*models(), data().inputs[0][:4]).cut("2")
    with pytest.raises(ValueError, match="at least one stitched network"):
        train_layers([], data(), QUICK)
    with pytest.raises(ValueError, match="must share a trunk"):
        train_layers([network, *stitched(other, "full")], data(), QUICK)
    with pytest.raises(ValueError, match="layer of its own"):
        train_layers([network, cut.stitch(network.layer)], data(), QUICK)
    with pytest.raises(ValueError, match="recipe must be one of v1, v2"):
        train_layers([network], data(), "v3")
    with pytest.raises(ValueError, match="labels"):
        train_layers([network], [data().inputs[0]], QUICK)
    with pytest.raises(TypeError, match="several times"):
        train_layers([network], iter(data()), QUICK)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": -1}, "epochs must be at least 0"),
        ({"head_start": -1}, "head_start must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"judged": 0}, "judged must be at least 1"),
        ({"keep": "first"}, 'keep must be "best" or "last"'),
    ],
    ids=str,
)
def test_bad_recipes(setting, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**setting)


def test_the_split_shares_no_example():
    loader = data(n=50)
    one, two = split_examples(loader, 0.8, batch_size=16, seed=1)
    assert (len(one.labels), len(two.labels)) == (40, 10)
    rows = torch.cat([one.inputs[0], two.inputs[0]]).flatten(1)
    assert len(rows.unique(dim=0)) == 50
    again, _ = split_examples(loader, 0.8, batch_size=16, seed=1)
    other, _ = split_examples(loader, 0.8, batch_size=16, seed=2)
    key = lambda part: part.inputs[0].flatten(1).sum(1).sort().values
    torch.testing.assert_close(key(one), key(again))
    assert not torch.allclose(key(one), key(other))
    assert [len(y) for _, y in one] == [16, 16, 8]


@pytest.mark.parametrize(
    ("reached", "best"), [([0.2, 0.3, 0.9], 10.0), ([0.5, 0.7, 0.7], 0.1), ([0.9, 0.3, 0.2], 1e-3)]
)
def test_alpha_is_the_best_on_held_out_training_examples(cut, monkeypatch, reached, best):
    """Of accuracies that are planted, on the part that no layer was trained on; the smallest of several."""
    asked = []
    planted = lambda networks, loader, **how: asked.append(len(loader.labels)) or reached
    monkeypatch.setattr("intertwine.stitching.choose_alpha.accuracies", planted)
    how = {"recipe": replace(QUICK, epochs=1), "options": StitchOptions(settings={"alpha": 7.0})}  # not one of them
    choice = choose_alpha(cut, "g_relu", data(n=60), alphas=(1e-3, 0.1, 10.0), **how)
    assert asked == [choice.held_out] == [12]
    assert choice.accuracies == dict(zip((1e-3, 0.1, 10.0), reached))
    assert choice.alpha == best
    assert choice.network.layer.alpha == choice.alpha
    assert "held-out training examples" in repr(choice)


def test_alpha_is_chosen_as_the_paper_does(cut, monkeypatch):
    """v2 D.5: among five powers of ten, on a fifth of the examples, after 5 epochs without a head start."""
    recipes = []

    def spy(networks, loader, recipe, **options):
        recipes.append(recipe)
        return train_layers(networks, loader, replace(recipe, epochs=1), **options)

    monkeypatch.setattr("intertwine.stitching.choose_alpha.train_layers", spy)
    choice = choose_alpha(cut, "g_relu", data(n=50))
    assert list(choice.accuracies) == [1e-3, 1e-2, 1e-1, 1.0, 10.0]
    assert choice.held_out == 10
    (recipe,) = recipes
    assert (recipe.epochs, recipe.head_start) == (5, 0)
    assert replace(recipe, epochs=20, head_start=10) == RECIPES["v1"]


def test_alpha_bad_input(cut):
    with pytest.raises(ValueError, match="must have a setting alpha"):
        choose_alpha(cut, "full", data())
    with pytest.raises(ValueError, match="alphas must hold"):
        choose_alpha(cut, "g_relu", data(), alphas=())
    with pytest.raises(ValueError, match=r"Got skip='mapped': give alpha as a number"):
        choose_alpha(replace(cut, skip="mapped", skips=(cut.tap,)), "g_relu", data())
    with pytest.raises(ValueError, match="share must be"):
        split_examples(data(), 1.0)
    with pytest.raises(ValueError, match="both parts must hold"):
        split_examples(data(n=1), 0.9)
    with pytest.raises(ValueError, match="to be split"):
        split_examples([{"x": torch.ones(2, 3), "labels": torch.tensor([0, 1])}], 0.5)
