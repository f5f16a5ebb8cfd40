"""Rotations: residual streams and heads rotate by any orthogonal matrix, and the logits stay."""

import pytest
import torch
import transformers_zoo as hf_zoo
from made import Made
from torch import nn

import intertwine as iw
from intertwine.exchange.rotation import hadamard
from intertwine.groups.sampling import haar
from intertwine.merging import export
from intertwine.symmetry.action import tensors_of

DECODERS = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "GemmaForCausalLM", "PhiForCausalLM",
    "GPT2LMHeadModel", "OPTForCausalLM", "GPTNeoXForCausalLM", "GPTJForCausalLM",
)  # fmt: skip


def made(name: str):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=g)
            parameter.copy_(0.3 * noise if parameter.ndim > 1 else parameter + 0.7 * noise)
    return model, inputs


@pytest.mark.parametrize("choice", ["hadamard", "random"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_keep_their_logits(name, choice):
    model, inputs = made(name)
    turned = iw.rotate(model, inputs, stream=choice, heads=choice)
    assert turned.proof.error < 1e-10 and turned.proof.control > 1e-3
    assert {r.kind for r in turned.rotated} == {"stream", "heads"} and type(turned.model) is type(model)
    iw.testing.assert_same_function(model, turned.model, inputs)


def test_the_matrix_given_is_the_one_that_turns_the_embedding():
    model, inputs = made("LlamaForCausalLM")
    model.double()
    q = haar(16, torch.Generator().manual_seed(3))
    plain = iw.rotate(model, inputs, stream=torch.eye(16), heads=None)
    turned = iw.rotate(model, inputs, stream=q, heads=None)
    a, b = (tensors_of(r.model)["model.embed_tokens.weight"] for r in (plain, turned))
    assert torch.allclose(b, a @ q.T, atol=1e-12)


def test_principal_axes_of_a_stream():
    model, inputs = made("LlamaForCausalLM")
    turned = iw.rotate(model, inputs, stream="principal", heads=None)
    state = tensors_of(turned.model)
    written = [t for n, t in state.items() if n.endswith(("embed_tokens.weight", "lm_head.weight"))]
    read = [t for n, t in state.items() if n.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]
    mlp = [t for n, t in state.items() if n.endswith(("gate_proj.weight", "up_proj.weight"))]
    back = [t.T for n, t in state.items() if n.endswith(("o_proj.weight", "down_proj.weight"))]
    x = torch.cat([*written, *read, *mlp, *back]).double()
    gram = x.T @ x
    assert float((gram - torch.diag(gram.diagonal())).abs().max()) < 1e-5 * float(gram.diagonal().max())
    assert bool((gram.diagonal().diff() < 1e-6).all())
    with pytest.raises(ValueError, match="stream must keep the vector of ones"):
        iw.rotate(made("GPT2LMHeadModel")[0], inputs, stream="principal")


def test_layer_norms_need_a_matrix_that_keeps_their_mean():
    model, inputs = made("GPT2LMHeadModel")
    with pytest.raises(ValueError, match=r"stream must keep the vector of ones"):
        iw.rotate(model, inputs, stream=haar(16, torch.Generator().manual_seed(3)))
    turned = iw.rotate(model, inputs, heads=None)
    moved = turned.transformation["transformer.wte.weight[1]"].linear
    assert torch.allclose(moved.sum(1), torch.ones(16).double()) and torch.allclose(
        moved @ moved.T, torch.eye(16).double()
    )
    assert any(isinstance(module, nn.LayerNorm) for module in turned.model.modules())


@pytest.mark.parametrize("make", [iw.fold, iw.rotate])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM"])
def test_what_is_saved_is_loaded_as_the_same_function_or_not_saved(name, make, tmp_path):
    model, inputs = made(name)
    turned, folder = make(model, inputs), tmp_path / "saved"
    if "lm_head.bias" in turned.added:
        assert make is iw.fold  # a rotation turns the biases of norms
        with pytest.raises(ValueError, match=r'would lose others. Got lm_head.bias. Fold with extend="ties"'):
            turned.model.save_pretrained(folder)
        with pytest.raises(ValueError, match=r"lm_head.bias"):
            export(turned.model, folder)
        assert not list(tmp_path.iterdir())
        torch.save(turned.model, tmp_path / "whole.pt")
        loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
        iw.testing.assert_same_function(model, loaded, inputs)
        turned = make(model, inputs, extend="ties")
        assert turned.added == ("lm_head.weight",)
    turned.model.save_pretrained(folder)
    loaded = type(model).from_pretrained(folder).eval()
    iw.testing.assert_same_function(turned.model, loaded, inputs)
    assert loaded.config.tie_word_embeddings == (model.config.tie_word_embeddings and not turned.added)


def logits(net: nn.Module):
    return Made(lambda m, tokens: m.net(tokens).logits, net=net)


def test_a_model_in_a_wrapper_is_not_saved_with_too_much_either(tmp_path):
    model, inputs = made("GPT2LMHeadModel")
    folded = iw.fold(logits(model), inputs["input_ids"])
    with pytest.raises(ValueError, match=r"Got lm_head.bias"):
        folded.model.net.save_pretrained(tmp_path)
    turned = iw.rotate(logits(model), inputs["input_ids"])
    turned.model.net.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    iw.testing.assert_same_function(model, loaded, inputs)
    with pytest.raises(ValueError, match=r"untie weights \(extend=True\), or turn the heads alone"):
        iw.rotate(model, inputs, extend=False)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(3, 8), nn.RMSNorm(8), nn.Linear(8, 2)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        y = self.norm(self.embed(x))
        return self.head(y.mean(1) + y.sum(1, keepdim=True)[:, 0])


def test_a_stream_that_is_pooled_over_its_positions():
    torch.manual_seed(0)
    model, x = Pooled(), torch.randn(4, 5, 3)
    iw.testing.assert_same_function(model, iw.rotate(model, x).model, x)


def test_what_cannot_rotate_is_named():
    model, inputs = made("BertForSequenceClassification")
    with pytest.raises(ValueError, match=r"stream that can rotate. Got bert.embeddings.LayerNorm.weight: add in"):
        iw.rotate(model, inputs)
    assert {r.kind for r in iw.rotate(model, inputs, stream=None).rotated} == {"heads"}
    mlp = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"stream that can rotate. Got no linear maps, no signs: relu in 1"):
        iw.rotate(mlp, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="heads that can rotate"):
        iw.rotate(mlp, torch.zeros(2, 3), stream=None)


def test_a_parameter_that_is_one_number_hides_no_reason():
    scaled = Made(
        lambda m, x: m.t * m.b(m.a(x).relu()), a=nn.Linear(4, 6), b=nn.Linear(6, 2),
        t=nn.Parameter(torch.tensor(2.0)),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"stream that can rotate. Got no linear maps, no signs: relu"):
        iw.rotate(scaled, torch.randn(3, 4))


@pytest.mark.parametrize("choice", ["haddamard", torch.ones(16, 16), torch.eye(3)[:2], torch.full((16, 16), torch.nan)])
def test_choices_that_are_no_rotation_are_refused(choice):
    with pytest.raises(ValueError, match=r'stream must be ("hadamard"|an orthogonal matrix)'):
        iw.rotate(nn.Linear(2, 2), torch.zeros(2, 2), stream=choice)


@pytest.mark.parametrize("n", [1, 2, 4, 12, 20, 24, 28, 36, 44, 64, 96, 768])
def test_hadamard_matrices(n):
    h = hadamard(n)
    assert bool((h.abs() == 1).all()) and torch.equal(h @ h.T, n * torch.eye(n).double())


@pytest.mark.parametrize("n", [-4, 0, 3, 6, 18, 92])
def test_orders_without_a_construction_are_refused(n):
    with pytest.raises(ValueError, match=f"n must have a known Hadamard matrix. Got {n}"):
        hadamard(n)
