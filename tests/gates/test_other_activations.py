"""Two slopes are gates; other activations are refused with their gate definition, or measured on request."""

import gate_models
import pytest
import torch
from made import Made
from torch import nn
from torch.nn import functional as F

import intertwine as iw
from intertwine.gates import dgn, dlgn, gate_patterns, neural_path_kernel, rectified

REFUSED = [
    nn.GELU(), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.ELU(), nn.CELU(), nn.SELU(), nn.Sigmoid(), nn.Softplus(), nn.ReLU6(),
    nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.LogSigmoid(), nn.Threshold(0.1, 0.0), nn.RReLU(),
]  # fmt: skip
RATIO = [nn.GELU(), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.ELU(), nn.Hardtanh()]
name_of = lambda act: type(act).__name__


def network(*acts):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *acts, nn.Linear(8, 3)).double().eval()


X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def attention():
    def run(m, x):
        h = m.inner(x)[:, None].relu()
        return m.head(m.mix(h, h, h, need_weights=False)[0][:, 0])

    return Made(run, inner=nn.Linear(4, 8), mix=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 3))


@pytest.mark.parametrize("act", REFUSED, ids=name_of)
def test_other_activations_are_refused_everywhere_with_a_way_out(act):
    model = network(act, nn.Linear(8, 8), nn.ReLU())
    with pytest.raises(ValueError, match=r"model must (have|be).*(rectified|ReLU)"):
        neural_path_kernel(model, X)
    for make in (dgn, dlgn):
        with pytest.raises(ValueError, match=r"ReLUs as its only nonlinearities. Got .*rectified\(model\)"):
            make(model)(X)


def test_the_message_holds_the_gate_definition_and_what_is_lost():
    with pytest.raises(ValueError, match=r"act\(q\) / q = Φ\(q\).*neither on/off nor invariant under scalings"):
        neural_path_kernel(network(nn.GELU()), X)
    with pytest.raises(ValueError, match=r"sigmoid\(q\), a soft gate of steepness 1"):
        dgn(network(nn.SiLU()))(X)
    with pytest.raises(ValueError, match=r"Its slope is a weight.*LeakyReLU"):
        dgn(network(nn.PReLU()))(X)


@pytest.mark.parametrize("act", RATIO, ids=name_of)
def test_ratios_are_gates_that_give_the_output(act):
    model = network(act)
    gates = gate_patterns(model, X, others="ratio")["1"]
    torch.testing.assert_close(model[2](model[0](X) * gates), model(X))
    signs = gate_patterns(model, X, others="sign")["1"]
    assert torch.equal(signs, model[0](X) > 0)
    assert (gates[signs] > 0).all() and gates.unique().numel() > 2  # neither on nor off


def test_a_ratio_at_zero_is_its_limit():
    model = network(nn.GELU())
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    torch.testing.assert_close(
        gate_patterns(model, X, others="ratio")["1"], torch.full((6, 8), 0.5).double(), atol=1e-4, rtol=0
    )


def test_ratios_change_under_rescaling_and_signs_do_not():
    model = network(nn.GELU())
    twin = network(nn.GELU())
    with torch.no_grad():
        twin[0].weight.mul_(3)
        twin[0].bias.mul_(3)
    assert torch.equal(*(gate_patterns(m, X, others="sign")["1"] for m in (model, twin)))
    assert (
        gate_patterns(model, X, others="ratio")["1"] - gate_patterns(twin, X, others="ratio")["1"]
    ).abs().max() > 0.01


@pytest.mark.parametrize("act", [nn.Sigmoid(), nn.Softplus()], ids=name_of)
def test_what_is_not_zero_at_zero_has_no_gate_at_all(act):
    with pytest.raises(ValueError, match="It is no gate"):
        gate_patterns(network(act), X, others="ratio")
    with pytest.raises(ValueError, match='others must be "refuse", "sign" or "ratio"'):
        gate_patterns(network(act), X, others="on")


def test_rectified_replaces_an_activation_wherever_it_is_held():
    act = nn.GELU()
    new = rectified(nn.Sequential(nn.Linear(2, 2), act, nn.Linear(2, 2), act))
    assert [type(module) for module in new[1::2]] == [nn.ReLU, nn.ReLU]


def test_rectified_replaces_activations_and_nothing_else():
    model = nn.Sequential(
        nn.Linear(4, 8), nn.GELU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.LeakyReLU(), nn.Linear(8, 3)
    )
    new = rectified(model)
    assert isinstance(new[1], nn.ReLU) and isinstance(new[2][1], nn.ReLU) and isinstance(new[3], nn.LeakyReLU)
    assert isinstance(model[1], nn.GELU) and all(
        torch.equal(p, q) for p, q in zip(model.parameters(), new.parameters())
    )
    assert neural_path_kernel(new, X.float()).shape == (6, 6)
    with pytest.raises(ValueError, match="model must hold activations other than ReLU as modules"):
        rectified(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module"):
        rectified(F.gelu)


@pytest.mark.parametrize("name", ["mlp, leaky", "mlp, absolute value"])
@pytest.mark.parametrize("make", [dgn, dlgn])
@pytest.mark.parametrize("gate", ["hard", "soft"])
def test_gated_networks_with_two_slopes_are_their_paths(name, make, gate):
    model, x = gate_models.make(name), gate_models.inputs(name)
    built = (
        make(model)
        if gate == "soft"
        else (make(model, gate="hard") if make is dlgn else dgn(model, regime="fixed_learnt"))
    )
    built = built.double().eval()
    torch.testing.assert_close(iw.gates.paths(built, x).outputs, built(x)[:, 0])
    torch.testing.assert_close(neural_path_kernel(built, x), iw.gates.paths(built, x).kernel())
    if make is dlgn:
        maps = iw.gates.effective_maps(built, x)  # refuses what is not affine
        assert len(maps) == len(built.gating(x))


def test_kernels_of_two_slopes_are_invariant_under_the_whole_group():
    for name in ("mlp, absolute value", "mlp, parametric"):
        model, x = gate_models.make(name), gate_models.inputs(name)
        symmetry = iw.symmetries(model, x)
        twin = symmetry.act(symmetry.random(seed=2), model)
        torch.testing.assert_close(neural_path_kernel(twin, x), neural_path_kernel(model, x))


def test_attention_and_layer_norms_are_refused_in_words():
    model = attention().double().eval()
    with pytest.raises(ValueError, match="attention"):
        neural_path_kernel(model, X)
    with pytest.raises(ValueError, match="Got attention in 'mix': its mixing weights depend on the input"):
        dgn(model)
    normed = network(nn.LayerNorm(8), nn.ReLU())
    with pytest.raises(ValueError, match="native_layer_norm"):
        neural_path_kernel(normed, X)
    with pytest.raises(ValueError, match=r"Got layer_norm. It divides by what it computes from the input"):
        dlgn(normed)(X)


def test_a_model_without_gates_has_no_gated_counterpart():
    with pytest.raises(ValueError, match="model must have ReLUs, whose on/off states are the gates"):
        neural_path_kernel(network(), X)
    for make in (dgn, dlgn):
        with pytest.raises(ValueError, match="model must have ReLUs, whose places the gates take"):
            make(network())(X)
