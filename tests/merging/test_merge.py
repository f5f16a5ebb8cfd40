"""Merging: interpolation, partial merging, repaired statistics, several networks, files."""

import copy
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from noise import rms, shaken
from quantised_models import text
from torch import nn
from torch.nn.utils import prune

import intertwine as iw
from intertwine._evaluation import copied
from intertwine.features.evaluate import evaluate
from intertwine.lab import training
from intertwine.matching import gather
from intertwine.merging import Recipe, align_family, average, export, merge, merge_many, recalibrate_, repair_
from intertwine.merging.barrier import PathOptions
from intertwine.merging.merge import between
from intertwine.merging.repair import repairable
from intertwine.symmetry.action import tensors_of

X = torch.zeros(2, 1, 8, 8)


@pytest.fixture(scope="module")
def aligned(trained):
    return {kind: iw.align(*models[:2], X) for kind, models in trained.items()}


def state(model):
    return {name: t.clone() for name, t in tensors_of(model).items()}


def equal(a, b):
    return all(torch.equal(x, b[name]) for name, x in a.items())


@pytest.mark.parametrize("how", ["linear", "spherical"])
def test_interpolation_meets_both_ends(how):
    a, b = torch.randn(4, 5), torch.randn(4, 5)
    assert torch.equal(between(a, b, 0, how), a) and torch.equal(between(a, b, 1, how), b)


def test_a_great_circle_keeps_the_norm_and_a_line_does_not():
    a, b = torch.randn(200).double(), torch.randn(200).double()
    b *= a.norm() / b.norm()
    assert between(a, b, 0.3, "spherical").norm() == pytest.approx(float(a.norm()))
    assert between(a, b, 0.3).norm() < 0.9 * a.norm()
    angles = [torch.acos(torch.dot(between(a, b, t, "spherical"), a) / a.norm() ** 2).item() for t in (0.25, 0.5, 1.0)]
    assert angles == pytest.approx([angles[2] / 4, angles[2] / 2, angles[2]])
    zero = torch.zeros(200).double()
    assert torch.equal(between(a, zero, 0.5, "spherical"), a / 2)
    b = (1e-3 * b - a) * (a.norm() / (1e-3 * b - a).norm())  # nearly a half turn away
    a, b = a.float(), b.float()
    c = between(a, b, 0.5, "spherical")
    assert c.norm() == pytest.approx(float(a.norm()), rel=1e-3)


def test_what_both_share_stays_bit_for_bit():
    mask = torch.tensor([0.0, -torch.inf])
    assert torch.equal(between(mask, mask.clone(), 0.5), mask)
    assert torch.equal(between(torch.tensor([3]), torch.tensor([5]), 0.5), torch.tensor([3]))


def test_a_merge_is_the_mean_in_the_basis_of_a(trained, aligned):
    a, b = trained["mlp"][:2]
    merged = merge(a, b, aligned["mlp"], ratio=0.25)
    moved = tensors_of(aligned["mlp"].apply(b))
    for name, x in tensors_of(a).items():
        assert torch.allclose(tensors_of(merged)[name], 0.75 * x + 0.25 * moved[name])


def test_merging_beats_averaging(trained, aligned, digits):
    loader = digits.loader("test")
    for kind, models in trained.items():
        train = digits.loader("train")
        merged = evaluate(merge(*models[:2], aligned[kind], loader=train), loader)
        averaged = evaluate(merge(*models[:2], None, loader=train), loader)
        worst = min(evaluate(m, loader).accuracy for m in models[:2])
        assert merged.accuracy > averaged.accuracy + 0.02
        assert merged.accuracy > worst - 0.12


def test_models_stay_as_they_are(trained, aligned, digits):
    a, b = trained["cnn"][:2]
    before = state(a), state(b)
    modes = [m.training for m in a.modules()]
    seed = torch.get_rng_state()
    merge(a, b, aligned["cnn"], loader=digits.loader("train", examples=200))
    assert equal(before[0], state(a)) and equal(before[1], state(b))
    assert [m.training for m in a.modules()] == modes and torch.equal(torch.get_rng_state(), seed)


def test_some_layers_only(trained, aligned):
    a, b = trained["mlp"][:2]
    merged = state(merge(a, b, aligned["mlp"], layers="3"))
    changed = {name for name, x in tensors_of(a).items() if not torch.equal(x, merged[name])}
    assert changed == {"3.weight", "3.bias"}
    by_share = state(merge(a, b, aligned["mlp"], ratio={"1": 0.5, "1.bias": 0.0}))
    assert {n for n, x in tensors_of(a).items() if not torch.equal(x, by_share[n])} == {"1.weight"}
    by_space = state(merge(a, b, aligned["mlp"], spaces="1.weight[0]"))
    touched = {n for n, x in tensors_of(a).items() if not torch.equal(x, by_space[n])}
    assert touched == {"1.weight", "1.bias", "3.weight"}


@pytest.mark.parametrize("batch", [32, 23, 1], ids=lambda batch: f"{batch}, {70 % batch} left")
def test_recalibration_measures_all_examples(batch):
    """A last batch of one example holds one value of each channel, which normalises nothing, and counts as all do."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2))
    x = torch.randn(70, 3)
    recalibrate_(model, x.split(batch))
    inner = model[0](x)
    assert torch.allclose(model[1].running_mean, inner.mean(0), atol=1e-6)
    assert torch.allclose(model[1].running_var, inner.var(0), rtol=1e-4)
    assert model[1].momentum == 0.1 and model[1].num_batches_tracked == 0
    with pytest.raises(ValueError, match="batches must hold at least 2 examples in all"):
        recalibrate_(model, [torch.randn(1, 3)])


def test_norms_without_running_statistics_need_more_than_one_example_in_evaluation_too():
    model, x = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)), torch.randn(33, 3)
    recalibrate_(model, x.split(16))
    torch.testing.assert_close(model[0].running_mean, x.mean(0))


def test_one_image_has_many_values_per_channel():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    images = [torch.randn(1, 3, 8, n) for n in (8, 10)]  # of other sizes, which no batch can hold
    recalibrate_(model, images)
    inner = torch.cat([model[0](x).transpose(0, 1).flatten(1) for x in images], 1)
    assert torch.allclose(model[1].running_mean, inner.mean(1), atol=1e-6)
    synchronised = recalibrate_(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model)), images)
    assert torch.allclose(synchronised[1].running_var, model[1].running_var)
    plain = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)) for _ in range(3)]
    assert all(torch.isfinite(p).all() for p in repair_(*plain, images).parameters())


def test_repair_gives_the_means_and_spreads_of_the_parents(trained, aligned, digits):
    a, b = trained["mlp"][:2]
    b = aligned["mlp"].apply(b)
    whole = [digits.loader("train", batch_size=2000).batch(slice(0, 1000))]  # one batch: what is written is exact
    merged = merge(a, b, None, repair=False)
    for shift in (True, False):
        mended = repair_(merge(a, b, None, repair=False), a, b, whole, shift=shift)
        for name in ("1", "3"):
            outs = [iw.collect(m, whole, [name])[name].double() for m in (a, b, mended, merged)]
            spread = (outs[0].std(0) + outs[1].std(0)) / 2
            alive = outs[3].std(0) > 1e-9
            if name == "1" or shift:
                assert torch.allclose(outs[2].std(0)[alive], spread[alive], rtol=1e-3)
            if shift:
                assert torch.allclose(outs[2].mean(0), (outs[0].mean(0) + outs[1].mean(0)) / 2, atol=1e-3)
        assert (outs[3].std(0) / spread).mean() < 0.95  # what REPAIR is for: averages vary too little


def test_repair_counts_a_last_batch_of_one_example():
    a, b, merged = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(3))
    x = torch.randn(33, 3)
    repair_(merged, a, b, x.split(16))
    ours, left, right = (model[0](x) for model in (merged, a, b))
    assert torch.allclose(ours.mean(0), (left.mean(0) + right.mean(0)) / 2, atol=1e-5)
    assert torch.allclose(ours.std(0), (left.std(0) + right.std(0)) / 2, rtol=1e-4)


def test_repair_follows_the_ratio_of_every_layer(trained, aligned, digits):
    a, b = trained["mlp"][:2]
    loader = [digits.loader("train", batch_size=2000).batch(slice(0, 500))]
    some = state(merge(a, b, aligned["mlp"], layers="1", loader=loader))
    changed = {name for name, x in tensors_of(a).items() if not torch.equal(x, some[name])}
    assert changed == {"1.weight", "1.bias"}  # the others stay those of a
    moved = aligned["mlp"].apply(b)
    mended = merge(a, moved, None, ratio={"1": 0.25, "3": 0.75}, loader=loader)
    for name, share in (("1", 0.25), ("3", 0.75)):
        outs = [iw.collect(m, loader, [name])[name].double() for m in (a, moved, mended)]
        assert torch.allclose(outs[2].mean(0), (1 - share) * outs[0].mean(0) + share * outs[1].mean(0), atol=1e-3)


def test_repair_leaves_outputs_and_shared_layers_alone():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(3, 4), shared, nn.ReLU(), shared, nn.Linear(4, 2))
    assert repairable(model, torch.zeros(2, 3)) == ({"0": -1}, [])


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.outer, self.head = (
            nn.Embedding(9, 4), nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 9, bias=False),
        )  # fmt: skip
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.outer(self.inner(self.embed(x)).relu()))


def test_a_tied_head_is_the_last_layer():
    assert list(repairable(TiedHead(), torch.tensor([[1, 2], [3, 4]]))[0]) == ["inner", "outer"]


class Called(TiedHead):
    def __init__(self, tied):
        super().__init__()
        self.enter = nn.Linear(4, 4)
        self.tied = getattr(self, tied)

    def forward(self, x):
        x = self.outer(self.inner(self.enter(self.embed(x))).relu())
        assert self.tied.weight.dtype == x.dtype  # no read of its numbers
        weight = self.tied.weight.mT if self.tied is self.outer else self.tied.weight
        return nn.functional.linear(x, weight)


@pytest.mark.parametrize(
    ("tied", "layers"),
    [("embed", ["enter", "inner", "outer"]), ("enter", ["inner", "outer"]), ("outer", ["enter", "inner"])],
)
def test_a_tied_head_may_be_called_as_a_function(tied, layers):
    assert list(repairable(Called(tied), torch.tensor([[1, 2], [3, 4]]))[0]) == layers


class Standardised(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, (self.weight - self.weight.mean()) / self.weight.std(), self.bias)


COMPUTED = {
    "weight norm": nn.utils.parametrizations.weight_norm,
    "spectral norm": nn.utils.parametrizations.spectral_norm,
    "old spectral norm": nn.utils.spectral_norm,
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.3),
    "pruned bias": lambda layer: prune.random_unstructured(layer, "bias", 0.3),
    "standardised": lambda layer: Standardised(layer.in_features, layer.out_features),
}


def layers(*changes):
    """Layers of which some have computed weights."""
    sizes = (3, 8, 8, 2)
    made = [change(nn.Linear(n, m)) for n, m, change in zip(sizes[:-1], sizes[1:], changes, strict=True)]
    return nn.Sequential(made[0], nn.ReLU(), made[1], nn.ReLU(), made[2]).eval()


def test_networks_pruned_differently_have_no_mean_while_masks_are_attached():
    def pruned(seed):
        torch.manual_seed(seed)
        return layers(nn.Identity(), COMPUTED["pruned"], nn.Identity())

    a, b = pruned(0), pruned(1)
    said = r"must be pruned alike.*'2\.weight_mask': call torch\.nn\.utils\.prune\.remove"
    with pytest.raises(ValueError, match=said):
        merge(a, b, None)
    with pytest.raises(ValueError, match=said):
        iw.barrier(a, b, [(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))])
    prune.custom_from_mask(prune.remove(b[2], "weight"), "weight", a[2].weight_mask)
    merged, x = merge(a, b, None), torch.randn(5, 8)
    mean = (a[2].weight_orig + b[2].weight_orig) / 2 * a[2].weight_mask
    assert torch.allclose(merged[2](x), nn.functional.linear(x, mean, merged[2].bias), atol=1e-6)


@pytest.mark.parametrize("kind", COMPUTED)
def test_layers_with_computed_weights_are_named_and_left_as_they_are(kind):
    def build(*places):
        torch.manual_seed(0)
        return layers(*(COMPUTED[kind] if place in places else nn.Identity() for place in range(3)))

    a, b = build(0), build(0)
    with torch.no_grad():
        for parameter in b.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    model, loader = merge(a, b, None), [torch.randn(40, 3)]
    before = state(model)
    with pytest.warns(UserWarning, match="layers must hold weights of their own to be repaired.*Got '0': "):
        repair_(model, a, b, loader)
    assert {name.split(".")[0] for name, old in before.items() if not torch.equal(old, tensors_of(model)[name])} == {
        "2"
    }
    with pytest.raises(ValueError, match="Got '0', '2': make them permanent"):
        merge(build(0, 1), build(0, 1), None, loader=loader)
    assert repairable(build(2), loader[0]) == ({"0": -1, "2": -1}, [])  # the last layer is not repaired in any case


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.norm = nn.Linear(3, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.lift(x)
        return self.head(x + self.down(nn.functional.gelu(self.up(self.norm(x)))))


def convolutions(norm):
    norms = [nn.BatchNorm2d(n) if norm else nn.Identity() for n in (6, 5)]
    first, second = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 5, 3)
    return nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))


def transposed():
    first, second = nn.Conv2d(1, 6, 3), nn.ConvTranspose2d(6, 4, 3, groups=2)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))


def calibrated(x):
    """A network whose batch norms have gains of one sign, and the statistics of ``x``."""
    model = convolutions(True).double().eval()
    for norm in (model[1], model[4]):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    return recalibrate_(model, [x])


@pytest.mark.parametrize(
    ("build", "layers", "shape", "rtol"),
    [
        (lambda x: Residual(), ["lift", "up", "down"], (60, 5, 3), 1e-9),
        (lambda x: convolutions(False), ["0", "3"], (60, 1, 8, 8), 1e-9),
        (lambda x: transposed(), ["0", "2"], (60, 1, 8, 8), 1e-9),
        (calibrated, ["1", "4"], (60, 1, 8, 8), 2e-3),  # batches are normalised by biased variances, torch keeps others
    ],
    ids=["layer norm", "no norm", "transposed convolution in groups", "batch norm"],
)
def test_repaired_statistics_are_the_interpolated_ones(build, layers, shape, rtol):
    x = torch.randn(shape).double()
    a, b = build(x).double().eval(), build(x).double().eval()
    mended, axis = merge(a, b, None, ratio=0.3, loader=[x]), 1 if x.ndim == 4 else 2
    for name in layers:
        rows = [iw.collect(m, [x], [name])[name].double().movedim(axis, 0).flatten(1) for m in (a, b, mended)]
        p, q, r = (torch.stack([row.mean(1), row.std(1)]) for row in rows)
        assert torch.allclose(r, 0.7 * p + 0.3 * q, rtol=rtol, atol=rtol), name


def test_three_networks_meet(trained, digits):
    models = trained["mlp"]
    options = {"seed": 1, "kinds": {"permutation"}, "sweeps": 4}
    found = gather(models, X, **options)
    assert found.distances[-1] < 0.95 * found.distances[0]
    assert all(y <= x + 1e-9 for x, y in zip(found.distances, found.distances[1:]))
    for model, moved in zip(models, found.apply(models)):
        iw.testing.assert_same_function(model, moved, torch.randn(4, 1, 8, 8))
    loader = digits.loader("test")
    merged = evaluate(merge_many(models, X, loader=digits.loader("train"), **options), loader)
    assert merged.accuracy > evaluate(average(models), loader).accuracy + 0.1


def test_planted_copies_are_gathered_exactly(trained):
    a = copy.deepcopy(trained["mlp"][0]).double()
    sym = iw.symmetries(a, X.double())
    copies = [a, *(sym.act(sym.random(seed=s, kinds={"permutation"}), a) for s in (1, 2))]
    found = gather(copies, X.double(), kinds={"permutation"})
    assert found.distances[-1] < 1e-12


def test_bad_input(trained, aligned, digits):
    a, b = trained["mlp"][:2]
    norm = trained["cnn"][:2]
    with pytest.raises(ValueError, match="loader must be given to repair a network with batch norms"):
        merge(*norm, aligned["cnn"])
    with pytest.raises(ValueError, match="repair must be 'repair' or 'rescale'"):
        merge(a, b, None, repair="recalibrate", loader=[X])
    with pytest.raises(ValueError, match=r"repair must be True or 'recalibrate' for a network with batch norms"):
        merge(*norm, aligned["cnn"], repair="repair", loader=[X])
    with pytest.raises(ValueError, match=r"repair must be True, False or one of .*Got 'magic'"):
        merge(a, b, None, repair="magic")
    with pytest.raises(ValueError, match=r"ratio must lie between 0 and 1\. Got 1\.5"):
        merge(a, b, None, ratio=1.5)
    for asked in (lambda how: merge(a, b, None, interpolation=how), lambda how: PathOptions(interpolation=how)):
        with pytest.raises(ValueError, match=r'interpolation must be "linear" or "spherical"\. Got \'sperical\''):
            asked("sperical")
    with pytest.raises(ValueError, match=r"layers must be beginnings .*'nowhere'"):
        merge(a, b, None, layers=["nowhere"])
    with pytest.raises(ValueError, match="alignment must be given to merge by spaces"):
        merge(a, b, None, spaces="1.weight[0]")
    with pytest.raises(ValueError, match="must be of one architecture"):
        merge(a, norm[0], None)
    broken = merge(a, a, None)
    broken[1].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"b must hold finite weights\. Got NaN or infinity in '1.weight'"):
        merge(a, broken, None)
    with pytest.raises(ValueError, match="models must be at least two"):
        gather([a], X)
    with pytest.raises(ValueError, match="models must be at least two"):
        merge_many([], X)
    with pytest.raises(ValueError, match="loader must yield at least one batch"):
        merge(*norm, aligned["cnn"], loader=[])


def test_files_with_a_card(trained, tmp_path):
    card = {"architecture": "digits_cnn", "recipe": {"ratio": 0.5}, "metrics": {"test_accuracy": 0.5}}
    path = export(trained["mlp"][0], tmp_path / "m.safetensors", card)
    read = training.read_card(path)
    assert read.architecture == "digits_cnn" and read.recipe == {"ratio": 0.5}
    assert json.loads((tmp_path / "m.json").read_text())["versions"]["torch"] == str(torch.__version__)
    with pytest.raises(ValueError, match="card must have fields among"):
        export(trained["mlp"][0], tmp_path / "m.safetensors", {"colour": "blue"})
    with pytest.raises(TypeError, match="model must be one of transformers"):
        export(trained["mlp"][0], tmp_path / "folder")
    with pytest.raises(ValueError, match=r"path must end in \.safetensors"):
        export(trained["mlp"][0], tmp_path / "m.pt")


def test_a_hugging_face_directory(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    a, b = (transformers.ViTForImageClassification(config).eval() for _ in range(2))
    merged = merge(a, b, iw.align(a, b, torch.randn(2, 1, 8, 8), kinds={"permutation"}))
    folder = export(merged, tmp_path / "merged", {"recipe": {"merged": ["a", "b|c"]}})
    assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    again = transformers.ViTForImageClassification.from_pretrained(folder)
    iw.testing.assert_same_function(merged, again, torch.randn(2, 1, 8, 8))
    assert "b\\|c" in (folder / "README.md").read_text()
    for model, size in ((a, 1000), (b, None)):  # in another number of files than before
        export(model, folder, shard_bytes=size)
        assert bool(list(folder.glob("*.index.json"))) == (size is not None)
        iw.testing.assert_same_function(
            model, transformers.ViTForImageClassification.from_pretrained(folder), torch.randn(2, 1, 8, 8)
        )


@pytest.mark.parametrize("method", ["weights", "activations", "mixed"])
def test_a_layer_of_zeros_is_no_obstacle(trained, digits, method):
    a, b = (copy.deepcopy(model) for model in trained["mlp"][:2])
    b[1].weight.zero_(), b[1].bias.zero_()
    loader = digits.loader("train", examples=200)
    found = iw.align(a, b, X, method=method, loader=loader, kinds={"permutation"})
    merged = merge(a, b, found, loader=loader)
    assert all(p.isfinite().all() for p in merged.parameters())
    iw.testing.assert_same_function(b, found.apply(b), torch.randn(3, 1, 8, 8))


def test_an_alignment_of_a_to_b_is_refused(trained, aligned):
    for kind, found in aligned.items():
        a, b = trained[kind][:2]
        merge(a, b, found, repair=False)
        with pytest.raises(ValueError, match="swap a and b"):
            merge(b, a, found, repair=False)
        with pytest.raises(ValueError, match="swap a and b"):
            iw.barrier(b, a, [(X, torch.zeros(2, dtype=torch.long))], alignment=found)


@pytest.mark.parametrize("gauged", [False, True])
def test_no_more_networks_are_built_than_there_are_to_be(trained, aligned, monkeypatch, gauged):
    """Both in the gauge of the alignment, where it has one, the second in the basis of the first, and the result."""
    built = []

    def counted(*args):
        built.append(copied(*args))
        return built[-1]

    for place in ("merging.merge", "symmetry.action"):
        monkeypatch.setattr(sys.modules[f"intertwine.{place}"], "copied", counted)
    found = replace(aligned["mlp"], gauge=counted) if gauged else aligned["mlp"]
    merged = merge(*trained["mlp"][:2], found, repair=False)
    assert merged is built[-1] and len(built) == (4 if gauged else 2)


class Tied(nn.Module):
    def __init__(self, tied: bool):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).relu())


def test_a_tied_network_is_not_merged_with_one_that_is_not():
    with pytest.raises(ValueError, match=r"must be tied alike. Got 'first.weight' and 'last.weight', one tensor in a"):
        merge(Tied(True), Tied(False), None)


class Phased(nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).to(torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight.T).abs()


def test_complex_weights_are_merged():
    a, b = Phased(0), Phased(1)
    with torch.no_grad():
        b.weight.mul_(1j)
    middle = between(a.weight.detach(), b.weight.detach(), 0.25)
    torch.testing.assert_close(middle, 0.75 * a.weight.detach() + 0.25 * b.weight.detach())
    assert torch.equal(merge(a, b, None, ratio=1.0).weight, b.weight)


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-99, 99, (3, 4), dtype=torch.int8))
        self.scale = nn.Parameter(torch.rand(3, 1))

    def forward(self, x):
        return x @ (self.weight * self.scale).T


def test_whole_numbers_have_no_mean():
    a, b = Rounded(), Rounded()
    labelled = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))]
    recipe = Recipe("linear", (("a", {"weight": 1.0}), ("b", {"weight": 1.0})), None, {})
    for asked in (
        lambda: merge(a, b, None), lambda: recipe.apply({"a": a, "b": b}),
        lambda: iw.barrier(a, b, labelled, points=3, alignment=None),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"real numbers wherever they differ.*Got int8 in 'weight'"):
            asked()
    b.weight.copy_(a.weight)
    torch.testing.assert_close(merge(a, b, None).scale, (a.scale + b.scale) / 2)


def test_labels_that_are_left_out_are_not_wrong():
    labels = torch.tensor([[0, 1, -100], [2, -100, -100]])
    logits = nn.functional.one_hot(labels.clamp_min(0), 3).float()
    score = evaluate(nn.Identity(), [(logits, labels)])
    assert score.accuracy == 1.0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_width_count(dtype):
    logits, labels = torch.randn(3, 256), torch.tensor([156, 3, 20])  # in bytes -100 is 156
    score = evaluate(nn.Identity(), [(logits, labels.to(dtype))])
    assert score == evaluate(nn.Identity(), [(logits, labels)])
    logits[0, 156] = 100
    assert evaluate(nn.Identity(), [(logits[:1], labels[:1].to(dtype))]).accuracy == 1


def test_the_mean_loss_is_over_labels_that_count():
    """However they are spread over batches, of which one has none."""
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4, 3), torch.randint(0, 3, (6, 4))
    labels[0], labels[1:3, 1:] = -100, -100
    batches = [(logits[i:j], labels[i:j]) for i, j in ((0, 1), (1, 3), (3, 6))]
    want = float(nn.functional.cross_entropy(logits.flatten(0, 1).double(), labels.flatten()))
    assert evaluate(nn.Identity(), batches).loss == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_mean_of_a_models_own_loss_is_over_labels_that_it_looks_at(shift):
    class Asked(nn.Module):
        def forward(self, logits, labels):
            used, goal = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
            loss = nn.functional.cross_entropy(used.flatten(0, 1), goal.flatten())
            return SimpleNamespace(loss=loss, logits=logits)

    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4, 3), torch.randint(0, 3, (6, 4))
    labels[0], labels[1:3, 2:], labels[3:, :2] = -100, -100, -100
    batches = [{"logits": logits[i:j], "labels": labels[i:j]} for i, j in ((0, 1), (1, 3), (3, 6))]
    want = float(Asked()(logits, labels).loss)
    assert evaluate(Asked(), batches).loss == pytest.approx(want, rel=1e-5)


SPECTRAL = [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]


def spectral(wrap, seed):
    """As trained: the vectors are nearly those of the weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(wrap(nn.Conv1d(3, 6, 2)), nn.ReLU(), wrap(nn.ConvTranspose1d(6, 5, 2), dim=1))
    for _ in range(30):
        model(torch.randn(2, 3, 4))
    return model.eval()


@pytest.mark.parametrize("wrap", SPECTRAL)
@pytest.mark.parametrize("made", ["merge", "many", "recipe", "some layers"])
def test_merged_layers_have_the_spectral_norm_that_theirs_have(wrap, made):
    a, b, x = spectral(wrap, 0), spectral(wrap, 1), torch.randn(2, 3, 4)
    before = state(a)
    if made == "recipe":
        merged = Recipe("slerp", (("a", {}), ("b", {})), "a", {"t": 0.4}).apply({"a": a, "b": b})
    elif made == "many":
        merged = merge_many([a, b, spectral(wrap, 2)], x)
    else:
        merged = merge(a, b, iw.align(a, b, x), 0.4, layers="0" if made == "some layers" else None)
    merged(x)
    for layer, dim in ((merged[0], 0), (merged[2], 1)):
        norm = torch.linalg.matrix_norm(layer.weight.detach().movedim(dim, 0).flatten(1).double(), 2)
        assert float(norm) == pytest.approx(1, abs=1e-3 if layer is merged[2] and made == "some layers" else 1e-5)
    assert equal(before, state(a))
    assert all(equal(state(merge(a, b, None, end)), state(one)) for end, one in ((0, a), (1, b)))


@pytest.mark.parametrize("wrap", SPECTRAL)
def test_points_of_a_barrier_have_spectral_norms(wrap):
    a, b = (nn.Sequential(wrap(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3)).eval() for _ in range(2))
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,)))]
    mean = {name: (x + tensors_of(b)[name]) / 2 for name, x in tensors_of(a).items()}
    first = mean[next(name for name in mean if "orig" in name)]
    hidden = nn.functional.linear(data[0][0], first / torch.linalg.matrix_norm(first, 2), mean["0.bias"]).relu()
    want = nn.functional.cross_entropy(nn.functional.linear(hidden, mean["2.weight"], mean["2.bias"]), data[0][1])
    direct = iw.barrier(a, b, data, 3, alignment=None).curves[0]
    assert direct.loss[1] == pytest.approx(float(want), rel=1e-5)
    assert direct.loss[0] == pytest.approx(evaluate(a, data).loss, rel=1e-6)


def test_the_mean_of_complex_weights_keeps_their_imaginary_parts():
    nets = [Phased(k) for k in range(3)]
    with torch.no_grad():
        for k, net in enumerate(nets):
            net.weight.mul_(1j**k)
    want = torch.stack([net.weight.detach() for net in nets]).mean(0)
    torch.testing.assert_close(average(nets).weight.detach(), want)
    merged = merge_many(nets, torch.randn(2, 6))  # units are left in place: elements are real
    torch.testing.assert_close(merged.weight.detach(), want)
    apart = sum(float((net.weight.detach() - want).norm()) ** 2 for net in nets) / 3
    assert gather(nets, torch.randn(2, 6)).distances[0] == pytest.approx(apart**0.5 / float(want.norm()), rel=1e-5)


def test_tied_names_have_one_ratio():
    with pytest.raises(ValueError, match=r"one number for tied names. Got 0.5 for 'first.weight' and 0.25 for 'last"):
        merge(Tied(True), Tied(True), None, {"first": 0.5, "last": 0.25})
    a, b = Tied(True), Tied(True)
    merged = merge(a, b, None, {"last": 0.25})
    torch.testing.assert_close(merged.first.weight, 0.75 * a.first.weight + 0.25 * b.first.weight)


def test_relatives_are_moved_by_one_element():
    """So that the difference of two tunings of one parent is what training changed, and not how each was aligned."""

    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    apart = lambda a, b: sum(float((x - y).detach().norm()) ** 2 for x, y in zip(a.parameters(), b.parameters())) ** 0.5
    models = [net(0), net(1), net(1)]
    shaken(models[2], 0.1, torch.std)
    family = align_family(models, X)
    assert family.elements[0] is None and family.like == (None, None, 1)
    moved = family.apply(models)
    for model, other in zip(models, moved):
        iw.testing.assert_same_function(model, other, torch.randn(4, 1, 8, 8))
    g = family.elements[1].transformation
    assert family.elements[2].transformation is g
    assert apart(moved[0], moved[1]) < apart(models[0], models[1])
    assert apart(moved[1], moved[2]) < apart(moved[1], iw.align(*models[::2], X).apply(models[2]))


def test_tunings_of_the_first_network_stay_as_they_are_where_nothing_is_folded_too():
    """Scales that follow an update would change the task vector."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    tuned = [shaken(copy.deepcopy(base), 0.1, torch.std) for _ in range(2)]
    assert align_family([base, *tuned], X).elements == (None, None, None)
    sym = iw.symmetries(base, X)
    scaled = sym.act(sym.random(seed=0, kinds=["scale"]), tuned[0])
    assert align_family([base, scaled], X).elements[1] is not None


def test_a_tuned_copy_is_aligned_where_units_of_one_layer_were_moved_and_left_where_none_were():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = text("LlamaForCausalLM")
    tuned = shaken(copy.deepcopy(model), 0.3, rms)
    assert align_family([model, tuned], inputs).elements == (None, None)
    mlp = tuned.model.layers[0].mlp
    order = torch.randperm(mlp.down_proj.in_features)
    with torch.no_grad():
        for layer, dim in ((mlp.gate_proj, 0), (mlp.up_proj, 0), (mlp.down_proj, 1)):
            layer.weight.copy_(layer.weight.index_select(dim, order))
    assert align_family([model, tuned], inputs).elements[1] is not None
