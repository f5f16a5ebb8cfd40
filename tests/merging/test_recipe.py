"""Recipes of mergekit: what they say, what they do to tensors, and what is refused."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from intertwine.merging import Recipe, TaskArithmetic, read_recipe
from intertwine.merging.merge import between
from intertwine.merging.recipe import METHODS

yaml = pytest.importorskip("yaml")


def ties(base, others, weights, density):
    """TIES by the paper's words, entry by entry: trim, elect the sign of the larger mass, mean of those that agree."""
    trimmed = []
    for x in others:
        delta = (x - base).flatten()
        cut = sorted(delta.abs().tolist(), reverse=True)[int(density * len(delta)) - 1]
        trimmed.append([d if abs(d) >= cut else 0.0 for d in delta.tolist()])
    out = []
    for entries in zip(*trimmed):
        weighted = [w * d for w, d in zip(weights, entries)]
        sign = 1 if sum(weighted) >= 0 else -1
        agree = [(w, v) for w, v in zip(weights, weighted) if v * sign > 0]
        out.append(sum(v for _, v in agree) / sum(w for w, _ in agree) if agree else 0.0)
    return base + torch.tensor(out).view_as(base)


def test_ties_is_what_the_paper_says():
    torch.manual_seed(0)
    base, others, weights = torch.randn(5, 7), [torch.randn(5, 7) for _ in range(3)], [0.5, 0.3, 0.8]
    torch.testing.assert_close(METHODS["ties"](base, others, weights, [0.4] * 3), ties(base, others, weights, 0.4))
    everything = METHODS["ties"](base, others, weights, [1.0] * 3)
    assert not torch.allclose(everything, ties(base, others, weights, 0.4))


def test_dare_keeps_a_share_and_its_mass():
    base, other = torch.zeros(100, 100), torch.rand(100, 100) + 1
    got = METHODS["dare_linear"](base, [other], [2.0], [0.3], torch.Generator().manual_seed(0))
    assert float((got != 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    assert float(got.sum()) == pytest.approx(2 * float(other.sum()), rel=1e-4)
    plain = TaskArithmetic("random")(base, [other], [2.0], [0.3], torch.Generator().manual_seed(0))
    assert float(plain.sum()) < 0.7 * float(other.sum())


@pytest.fixture
def nets(tmp_path):
    torch.manual_seed(0)
    made = {}
    for name in "abc":
        (tmp_path / name).mkdir()
        made[str(tmp_path / name)] = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return made


def written(tmp_path, **said):
    file = tmp_path / "recipe.yml"
    file.write_text(yaml.safe_dump(said))
    return file


def entry(name, **parameters):
    return {"model": name, "parameters": parameters} if parameters else {"model": name}


def test_linear_slerp_and_filters(tmp_path, nets):
    a, b, _ = nets.values()
    recipe = read_recipe(
        written(tmp_path, merge_method="linear", models=[entry("a", weight=1), entry("b", weight=3)], dtype="float16")
    )
    got = recipe.apply(nets)
    assert got[0].weight.dtype == torch.float16
    torch.testing.assert_close(got[0].weight.float(), (a[0].weight + 3 * b[0].weight) / 4, atol=1e-3, rtol=0)
    t = [{"filter": "2.", "value": 0.25}, {"value": 1}]
    recipe = read_recipe(
        written(tmp_path, merge_method="slerp", base_model="b", models=[entry("b"), entry("a")], parameters={"t": t})
    )
    got = recipe.apply(nets)
    torch.testing.assert_close(got[2].weight, between(b[2].weight.data, a[2].weight.data, 0.25, "spherical"))
    assert torch.equal(got[0].weight, a[0].weight)


def test_numbers_without_a_point_are_numbers(tmp_path, nets):
    """YAML takes them for text."""
    text = written(tmp_path, merge_method="linear", models=[entry("a", weight=[{"value": 0.5}]), entry("b", weight=3)])
    text.write_text(text.read_text().replace("0.5", "5e-1").replace("weight: 3", "weight: 3e+0"))
    assert "5e-1" in text.read_text() and "3e+0" in text.read_text()
    assert [said["weight"] for _, said in read_recipe(text).models] == [(("", 0.5),), 3.0]


def test_a_base_among_the_models_has_no_weight(tmp_path, nets):
    a, b, c = nets.values()
    models = [entry("a"), entry("b", weight=0.5), entry("c", weight=0.25)]
    said = {"merge_method": "task_arithmetic", "base_model": "a", "models": models, "parameters": {"lambda": 2}}
    recipe = read_recipe(written(tmp_path, **said))
    want = a[0].weight + 2 * (0.5 * (b[0].weight - a[0].weight) + 0.25 * (c[0].weight - a[0].weight))
    torch.testing.assert_close(recipe.apply(nets)[0].weight, want)
    drops = Recipe("dare_ties", recipe.models, recipe.base, {"density": 0.5})
    first, again, other = drops.apply(nets), drops.apply(nets), drops.apply(nets, seed=1)
    assert torch.equal(first[0].weight, again[0].weight) and not torch.equal(first[0].weight, other[0].weight)


def test_what_is_written_reads_back(tmp_path, nets):
    t = (("self_attn", 0.2), ("", 0.5))
    recipe = Recipe("slerp", (("a", {}), ("b", {})), "a", {"t": t}, "bfloat16")
    places = {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}
    assert read_recipe(recipe.moved(places).write(tmp_path / "out.yml")) == recipe.moved(places)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"merge_method": "tie", "models": []}, r"merge_method must be one of .* Did you mean 'ties'"),
        ({"merge_method": "slerp", "slices": []}, "recipe must merge whole models. Got slices"),
        ({"merge_method": "linear", "models": [entry("a")], "chat_template": "x"}, "recipe must have keys among"),
        ({"merge_method": "linear", "models": [entry("gone", weight=1)]}, "Nothing is downloaded"),
        ({"merge_method": "linear", "models": [entry("a+lora", weight=1)]}, "Adapters are merged beforehand"),
        ({"merge_method": "linear", "models": [entry("a")]}, "weight must be given for every model of linear"),
        ({"merge_method": "ties", "models": [entry("a", weight=1)]}, "base_model must be given for ties"),
        ({"merge_method": "ties", "base_model": "a", "models": [entry("a")]}, "at least one beside the base"),
        ({"merge_method": "linear", "models": [entry("a", weight=[0, 1])]}, "Gradients over layers are not read"),
        ({"merge_method": "linear", "models": [entry("a", weight="much")]}, "weight of a recipe must be a number."),
        ({"merge_method": "linear", "models": [entry("a", wait=1)]}, "parameters of a recipe must be among"),
        ({"merge_method": "linear", "models": [entry("a", weight=1)], "tokenizer_source": "union"}, "must be base"),
        ({"merge_method": "linear", "models": [entry("a", weight=1)], "dtype": "int4"}, "dtype must be one of"),
        ({"merge_method": "linear", "models": [entry("a", weight=1)], "dtype": ["int4"]}, "dtype must be one of"),
        ({"merge_method": "linear", "models": "a"}, "models of a recipe must be a list"),
        ({"merge": 1}, "recipe must hold merge_method and models"),
    ],
)
def test_recipes_that_are_refused(tmp_path, nets, said, message):
    with pytest.raises(ValueError, match=message):
        read_recipe(written(tmp_path, **said))


def test_what_is_no_yaml(tmp_path):
    (tmp_path / "bad.yml").write_text("a: [1,\nb: }")
    with pytest.raises(ValueError, match="recipe must be YAML"):
        read_recipe(tmp_path / "bad.yml")
    (tmp_path / "code.yml").write_text("merge_method: !!python/object/apply:os.system ['true']")
    with pytest.raises(ValueError, match="recipe must be YAML"):
        read_recipe(tmp_path / "code.yml")


def bf16(net):
    return copy.deepcopy(net).bfloat16()


@pytest.mark.parametrize("method", ["linear", "slerp", "task_arithmetic", "ties"])
def test_networks_are_cast_before_they_are_merged(nets, method):
    """As mergekit does: to ``dtype`` first, to ``out_dtype`` last."""
    own = {} if method == "slerp" else {"weight": 0.3}
    places = list(nets)[:2]
    base = None if method == "linear" else places[0]
    recipe = Recipe(method, tuple((place, own) for place in places), base, {"t": 0.3} if method == "slerp" else {})
    low = {place: bf16(net) for place, net in nets.items()}
    wide = {place: copy.deepcopy(net).float() for place, net in low.items()}
    want = recipe.apply(wide)[0].weight
    assert not torch.equal(want, want.bfloat16().float())
    assert torch.equal(replace(recipe, dtype="float32").apply(low)[0].weight, want)
    assert torch.equal(replace(recipe, dtype="float32", out_dtype="float16").apply(low)[0].weight, want.half())
    late = replace(recipe, out_dtype="float32").apply(low)[0].weight
    assert torch.equal(late, want.bfloat16().float())
    assert torch.equal(replace(recipe, dtype="bfloat16").apply(nets)[0].weight, want.bfloat16())
    assert all(p.dtype == torch.bfloat16 for net in low.values() for p in net.parameters())


def test_both_dtypes_are_read_and_written(tmp_path, nets):
    said = {"merge_method": "linear", "models": [entry("a", weight=1)], "dtype": "float32", "out_dtype": "bfloat16"}
    recipe = read_recipe(written(tmp_path, **said))
    assert (recipe.dtype, recipe.out_dtype) == ("float32", "bfloat16")
    assert read_recipe(recipe.write(tmp_path / "again.yml")) == recipe
    with pytest.raises(ValueError, match=r"out_dtype must be one of float32, float16, bfloat16. Got 'int8'"):
        replace(recipe, out_dtype="int8")


@pytest.mark.parametrize("weight", [-1.0, (("2.", -1.0), ("", 3.0)), -1 + 1e-12], ids=["plain", "filter", "nearly"])
def test_weights_that_sum_to_zero_have_no_mean(nets, weight):
    (a, x), (b, y) = list(nets.items())[:2]
    recipe = Recipe("linear", ((a, {"weight": 1.0}), (b, {"weight": weight})), None, {})
    for work in (lambda: recipe.check(x), lambda: recipe.apply(nets)):
        with pytest.raises(ValueError, match=r"weights must not sum to zero .* Got 1.0 and -.* Say normalize: false."):
            work()
    plain = replace(recipe, settings={"normalize": False}).apply(nets)
    torch.testing.assert_close(plain[2].weight, x[2].weight - y[2].weight)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("density", 1.7, "above 0 and at most 1"),
        ("density", 0.0, "above 0 and at most 1"),
        ("density", (("2.", 0.5), ("", -0.1)), "above 0 and at most 1"),
        ("t", 1.5, "between 0 and 1"),
        ("t", (("2.", -0.5), ("", 0.5)), "between 0 and 1"),
        ("weight", float("nan"), "finite"),
    ],
)
def test_numbers_out_of_range_are_refused(key, value, rule):
    models = (("a", {}), ("b", {"weight": 1.0, **({} if key == "t" else {key: value})}))
    method, settings = ("slerp", {"t": value}) if key == "t" else ("ties", {})
    with pytest.raises(ValueError, match=rf"{key} must be {rule}. Got "):
        Recipe(method, models, "a", settings)


def test_a_network_that_is_listed_twice_counts_twice_each_time_with_its_own_weight(nets):
    (a, x), (b, y) = list(nets.items())[:2]
    recipe = Recipe("linear", ((a, {"weight": 1.0}), (b, {"weight": 1.0}), (a, {"weight": 2.0})), None, {})
    torch.testing.assert_close(recipe.apply(nets)[0].weight, (3 * x[0].weight + y[0].weight) / 4)


class Phases(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))


def test_complex_weights_are_merged_by_their_parts_or_refused():
    torch.manual_seed(0)
    a, b = Phases(), Phases()
    models, nets = (("a", {"weight": 1.0}), ("b", {"weight": 3.0})), {"a": a, "b": b}
    got = Recipe("linear", models, None, {}, "float32", "bfloat16").apply(nets).weight
    torch.testing.assert_close(got, (a.weight + 3 * b.weight) / 4)
    got = Recipe("task_arithmetic", models, "a", {"weight": 0.5}).apply(nets).weight
    torch.testing.assert_close(got, a.weight + 3 * (b.weight - a.weight))
    for method in ("ties", "dare_linear", "dare_ties"):
        with pytest.raises(ValueError, match=rf"linear, slerp, task_arithmetic for complex weights.*Got '{method}'"):
            Recipe(method, models, "a", {"density": 0.5}).apply(nets)


def test_tied_tensors_go_by_their_first_name_and_shared_infinities_stay():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.last.weight = self.first.weight
            self.register_buffer("mask", torch.cat([torch.tensor([-torch.inf]), torch.rand(7)]))

    torch.manual_seed(0)
    a, b = Tied(), Tied()
    weight = {"weight": (("first", 0.25), ("", 0.75)), "density": 0.5}
    for method in ("task_arithmetic", "ties", "dare_linear"):
        got = Recipe(method, (("a", {}), ("b", {})), "a", {**weight, "rescale": True}).apply({"a": a, "b": b})
        assert got.first.weight is got.last.weight
        assert got.mask.isneginf().tolist() == [True] + [False] * 7 and not got.mask.isnan().any()
        if method == "task_arithmetic":
            torch.testing.assert_close(got.last.weight, 0.75 * a.first.weight + 0.25 * b.first.weight)
            torch.testing.assert_close(got.last.bias, 0.25 * a.last.bias + 0.75 * b.last.bias)


def test_what_all_networks_share_beside_their_weights_stays():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("frequencies", torch.tensor([1.0, 0.5]), persistent=False)

    a, b = Rotary(), Rotary()
    weight = {"weight": (("layer", 1.0),)}  # none for the buffer
    got = Recipe("linear", (("a", weight), ("b", weight)), None, {"normalize": False}).apply({"a": a, "b": b})
    torch.testing.assert_close(got.layer.weight, a.layer.weight + b.layer.weight)
    assert torch.equal(got.frequencies, a.frequencies)
