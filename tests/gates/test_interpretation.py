"""Effective maps, active sub-networks, shared gates: against Jacobians, enumeration and loops."""

import json
import math

import gate_models
import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.gates import active_subnetwork, dgn, dlgn, dlgn_sf, effective_maps, shared_gates

NAMES = list(gate_models.MODELS)
LINEAR = ["mlp, biases", "zero-padded GAP", "average pooling", "max pooling", "residual, biases"]


def linear_network(name, shallow=False):
    model, x = gate_models.make(name), gate_models.inputs(name)
    network = dlgn_sf(model, x) if shallow else dlgn(model)
    return network.double().eval(), x


@pytest.mark.parametrize("shallow", [False, True], ids=["deep", "shallow"])
@pytest.mark.parametrize("name", LINEAR)
def test_effective_maps_are_the_jacobians_and_give_every_pre_activation(name, shallow):
    network, x = linear_network(name, shallow)
    for k, (found, q) in enumerate(zip(effective_maps(network, x), network.pre_activations(x))):
        jacobian = torch.autograd.functional.jacobian(lambda z: network.pre_activations(z[None])[k][0], x[0])  # noqa: B023
        torch.testing.assert_close(found.weights, jacobian, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found(x), q.detach(), rtol=1e-12, atol=1e-12)


def test_effective_maps_by_name_at_the_centre_and_back_from_disk(tmp_path):
    network, x = linear_network("zero-padded GAP")
    every = effective_maps(network, x)
    centre = effective_maps(network, x, "3", positions="centre")
    assert [m.layer for m in every] == ["1", "3", "7"] and len(centre) == 1
    torch.testing.assert_close(centre["3"].weights, every["3"].weights[:, 1, 1])
    assert centre["3"].units == 2 and len(every.to_frame()) == sum(m.units for m in every) and "rank" in str(every)
    again = type(every).load(every.save(tmp_path / "maps.json"))
    assert all(torch.equal(m.weights, n.weights) and m.layer == n.layer for m, n in zip(every, again))


def test_effective_maps_are_named_after_the_layers_that_they_gate():
    torch.manual_seed(0)
    hidden = [m for _ in range(3) for m in (nn.Linear(4, 4), nn.ReLU())]
    network = dlgn(nn.Sequential(*hidden, nn.Linear(4, 2)), gate="hard", permutation=(1, 2, 0)).double().eval()
    x = torch.randn(20, 4, dtype=torch.float64)
    maps, gates = effective_maps(network, x), iw.gates.gate_patterns(network, x)
    assert [m.layer for m in maps] == list(gates)
    assert all(torch.equal(maps[name](x) > 0, on) for name, on in gates.items())
    assert [m.layer for m in effective_maps(dlgn(gate_models.make("mlp")).double(), x, "1#1")] == ["1#1"]


def test_effective_maps_leave_the_network_alone():
    network, x = linear_network("max pooling")
    network.train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    effective_maps(network, x)
    assert network.training and all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


def test_what_has_no_effective_map_is_refused():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    with pytest.raises(TypeError, match=r"network must be a gated network.*Got Sequential"):
        effective_maps(model, x)
    with pytest.raises(ValueError, match=r"gating network must be linear.*active_subnetwork"):
        effective_maps(dgn(model), x)
    network = dlgn(model).double()
    with pytest.raises(ValueError, match=r"layers must be among \['1#0', '1#1'\]. Got \['2'\]"):
        effective_maps(network, x, ["2"])
    with pytest.raises(ValueError, match="images must fit in memory"):
        effective_maps(network, x, memory=100)
    with pytest.raises(ValueError, match='positions must be "all" or "centre"'):
        effective_maps(network, x, positions="corner")


@pytest.mark.parametrize("name", NAMES)
def test_the_active_subnetwork_computes_the_output_and_that_of_near_inputs(name):
    model, x = gate_models.make(name), gate_models.inputs(name, 1)
    found = active_subnetwork(model, x)
    torch.testing.assert_close(found.outputs, model(x)[0].detach())
    near = x + 1e-7 * torch.randn_like(x)  # no gate changes
    affine = (found.weights * near).flatten(1).sum(1) + found.offsets
    torch.testing.assert_close(affine, model(near)[0].detach(), rtol=1e-12, atol=1e-12)
    overlap = iw.gates.overlap(model, x)
    assert found.log_overlap == pytest.approx(float(overlap.log()))
    assert all(torch.equal(g, e[0]) for g, e in zip(found.gates, iw.gates.gate_patterns(model, x).values()))


def test_the_active_subnetwork_counts_active_paths_where_no_weights_are_shared():
    model, x = gate_models.make("mlp, biases"), gate_models.inputs("mlp, biases", 1)
    assert active_subnetwork(model, x).log_overlap == pytest.approx(
        float(iw.gates.paths(model, x).activity.sum().log())
    )


@pytest.mark.parametrize("input", ["x", "ones"])
def test_the_active_subnetwork_of_a_gated_network_is_linear_in_the_value_input(input):
    model, x = gate_models.make("mlp, biases"), gate_models.inputs("mlp, biases", 1)
    network = dgn(model, input=input).double().eval()
    found = active_subnetwork(network, x)
    given = x if input == "x" else torch.ones_like(x)
    torch.testing.assert_close((found.weights * given).sum(1) + found.offsets, network(x)[0].detach())
    torch.testing.assert_close(found.contributions(0, given[0]).sum() + found.offsets[0], found.outputs[0])
    if input == "x":  # the gates depend on x too, so that the Jacobian of the whole is another
        whole = torch.autograd.functional.jacobian(lambda z: network(z)[0], x)[:, 0]
        assert (whole - found.weights).abs().max() > 1e-3


def test_the_active_subnetwork_comes_back_and_leaves_the_model_alone(tmp_path):
    model, x = gate_models.make("overlapping pools, groups"), gate_models.inputs("overlapping pools, groups", 1)
    model.train()
    found = active_subnetwork(model, x)
    assert model.training and all(p.grad is None for p in model.parameters())
    again = type(found).load(found.save(tmp_path / "active.json"))
    assert all(torch.equal(g, h) and g.dtype == h.dtype for g, h in zip(found.gates, again.gates))
    assert torch.equal(found.weights, again.weights) and str(found) == str(again) and "paths are on" in str(found)
    with pytest.raises(ValueError, match="x must be one input"):
        active_subnetwork(model, torch.cat([x, x]))


@pytest.mark.parametrize("name", ["mlp, biases", "mlp, leaky", "zero-padded GAP", "max pooling"])
def test_shared_gates_are_means_over_pairs_of_different_examples(name):
    model, x = gate_models.make(name), gate_models.inputs(name, 12)
    labels = torch.tensor([0, 1, 2] * 4)
    found = shared_gates(model, x, labels, ["a", "b", "c"])
    patterns = {k: g for k, g in iw.gates.gate_patterns(model, x).items() if g.dtype != torch.long}
    assert found.layers == tuple(patterns)
    for gates, rates, overlap in zip(patterns.values(), found.rates, found.overlap):
        flat = gates.flatten(1).double()
        for a in range(3):
            torch.testing.assert_close(rates[a], gates[labels == a].double().mean(0))
            for b in range(3):
                pairs = [(i, j) for i in range(12) for j in range(12) if i != j and (labels[i], labels[j]) == (a, b)]
                mean = sum(float(flat[i] @ flat[j]) for i, j in pairs) / len(pairs) / flat.shape[1]
                assert float(overlap[a, b]) == pytest.approx(mean)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_labels_of_two_classes_may_be_of_any_whole_type(dtype):
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    labels = torch.arange(len(x)) % 2
    found, expected = shared_gates(model, x, labels.to(dtype)), shared_gates(model, x, labels)
    assert all(torch.equal(a, b) for a, b in zip(found.rates + found.overlap, expected.rates + expected.overlap))


def test_shared_gates_find_planted_units(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))
    x = torch.tensor([[1.0, 1, -1], [2, 1, -1], [1, -1, 1], [3, -1, 2]])  # 0 for both; 1 for the first, 2 for the other
    found = shared_gates(model, x, torch.tensor([0, 0, 1, 1]), ["left", "right"])
    assert found.shared("left", "right", "1").tolist() == [True, False, False]
    assert sorted(found.separating("left", "right", "1", 2)) == [((1,), 1.0), ((2,), -1.0)]
    assert found.alignment(0).tolist() == [[1.0, 0.5], [0.5, 1.0]]
    again = type(found).load(found.save(tmp_path / "shared.json"))
    assert torch.equal(again.rates[0], found.rates[0]) and again.classes == found.classes
    assert "left" in str(found) and len(found.to_frame()) == 3
    with pytest.raises(ValueError, match=r"class must be one of \['left', 'right'\]. Got 'up'"):
        found.shared("left", "up", 0)
    with pytest.raises(ValueError, match=r"layer must be one of \['1'\]"):
        found.alignment("2")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(5, dtype=torch.long), "one for each of 6 inputs"),
        (torch.zeros(6), "labels must be whole numbers"),
        (torch.tensor([0, 0, 0, 0, 0, 1]), r"two examples. Got fewer for \[1\]"),
        (torch.tensor([0, 0, 0, -1, 0, 1]), "labels must be from 0"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(ValueError, match=message):
        shared_gates(gate_models.make("mlp"), gate_models.inputs("mlp"), labels)


def test_a_network_is_taken_apart_in_one_call():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, labels = torch.randn(60, 5, dtype=torch.float64), torch.arange(60) % 3
    study = iw.gates.examine(model, x, labels, kernel_examples=20, index=2)
    assert torch.bincount(study.labels).tolist() == [7, 7, 6] and study.labels.equal(study.labels.sort().values)
    gates = iw.gates.gate_patterns(model, x)
    for layer, on in zip(study.layers, gates.values()):
        assert layer.on == pytest.approx(float(on.double().mean()))
        assert (layer.never, layer.always) == (int((~on).all(0).sum()), int(on.all(0).sum()))
    assert all(
        torch.allclose(k.diagonal(), torch.ones(20).double()) for k in (study.npk, study.ntk, *study.base.values())
    )
    chosen = [i for c in range(3) for i in range(60) if labels[i] == c and i < 20]
    kernel = iw.gates.neural_path_kernel(model, x[chosen])
    size = kernel.diagonal().sqrt()
    torch.testing.assert_close(study.npk, kernel / size[:, None] / size)
    assert study.alignments["1"]["1"] == pytest.approx(1)
    few = iw.gates.examine(model, x, torch.arange(60) % 10, kernel_examples=8)
    assert few.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # pairs within a class, though there are ten
    assert torch.equal(study.example, x[2])
    assert str(iw.gates.examine(model, x, labels.byte(), kernel_examples=20, index=2)) == str(study)


@pytest.mark.parametrize("gate", ["soft", "hard"])
def test_a_gated_network_is_taken_apart_by_the_gates_that_it_uses(gate):
    torch.manual_seed(0)
    network = dlgn(gate_models.make("mlp, biases"), gate=gate, input="ones").double().eval()
    x, labels = gate_models.inputs("mlp, biases", 24), torch.arange(24) % 2
    study = iw.gates.examine(network, x, labels, kernel_examples=10)
    gates = [q > 0 for q in network.pre_activations(x)]
    assert [layer.on for layer in study.layers] == pytest.approx([float(g.double().mean()) for g in gates])
    assert torch.allclose(study.shared.rates[0][0], gates[0][labels == 0].double().mean(0))
    values = [n for n, _ in network.named_parameters() if n.startswith("value.")]
    chosen = [i for c in range(2) for i in range(10) if labels[i] == c]
    kernel = iw.gates.neural_tangent_kernel(network, x[chosen], kind="trace", parameters=values)
    size = kernel.diagonal().sqrt()
    torch.testing.assert_close(study.ntk, kernel / size[:, None] / size)
    assert network.gate == gate
    assert ("above 1/2" in study.notes[0]) == (gate == "soft")


def test_what_cannot_be_taken_apart_is_refused():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp", 12)
    labels = torch.arange(12) % 2
    with pytest.raises(ValueError, match="index must be from 0 to 11"):
        iw.gates.examine(model, x, labels, index=12)
    with pytest.raises(ValueError, match="kernel_examples must be at least 4"):
        iw.gates.examine(model, x, labels, kernel_examples=3)
    with pytest.raises(ValueError, match="at most max_operations"):
        iw.gates.examine(model, x, labels, max_operations=10)


def test_results_have_pages(tmp_path):
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp", 12)
    results = (
        effective_maps(dlgn(model).double(), x), active_subnetwork(model, x[:1]),
        shared_gates(model, x, torch.arange(12) % 2),
    )  # fmt: skip
    for k, result in enumerate(results):
        assert "<table" in result.to_html(tmp_path / f"{k}.html").read_text(encoding="utf-8")


def test_a_dead_network_is_taken_apart_in_words(tmp_path):
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    study = iw.gates.examine(model, torch.randn(12, 3), torch.arange(12) % 2)
    assert any("No path from an input" in note for note in study.notes) and not study.npk.any()
    assert "No path is on" in str(study.active)
    file = study.save(tmp_path / "study.json")
    json.loads(file.read_text(), parse_constant=pytest.fail)  # no NaN or Infinity, which are not JSON
    back = iw.gates.GateStudy.load(file)
    assert back.notes == study.notes and back.active.log_overlap == -math.inf
