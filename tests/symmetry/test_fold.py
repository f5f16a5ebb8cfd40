"""Folding: the same function with gains of one, biases pushed on and centred weights, whatever the architecture."""

import pytest
import torch
import transformers_zoo as hf_zoo
from made import Made
from torch import nn
from upstream import is_older, stacked_experts, unscaled_t5

import intertwine as iw
from intertwine.symmetry import fold_norm_gains
from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.folding.fold import folded
from intertwine.testing import outputs, relative_error

# architecture -> what the fold adds and what it must keep, by the end of their names
FOLDED = {
    "LlamaForCausalLM": (set(), set()),
    "MistralForCausalLM": (set(), set()),
    "Qwen2ForCausalLM": ({"lm_head.weight", "o_proj.bias"}, set()),
    "GemmaForCausalLM": ({"lm_head.weight"}, set()),
    "MixtralForCausalLM": (set(), set()),
    "PhiForCausalLM": (set(), set()),
    "GPT2LMHeadModel": ({"lm_head.weight", "lm_head.bias"}, set()),
    "GPTNeoXForCausalLM": ({"lm_head.bias", "embed_out.bias"}, set()),  # by the release of transformers
    "GPTJForCausalLM": ({"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"}, set()),
    "OPTForCausalLM": ({"lm_head.weight", "lm_head.bias"}, set()),
    "BloomForCausalLM": (
        {"lm_head.weight", "lm_head.bias"},
        {"word_embeddings_layernorm.weight", "word_embeddings_layernorm.bias"},
    ),
    "Qwen3ForCausalLM": (set(), {"q_norm.weight", "k_norm.weight"}),
    "T5ForConditionalGeneration": ({"lm_head.weight"}, set()),
}


OLDER = {  # releases of transformers that write them otherwise
    "MixtralForCausalLM": stacked_experts,
    "T5ForConditionalGeneration": unscaled_t5,
}


def made(name: str, dtype: torch.dtype = torch.float32):
    """A tiny model whose gains and biases are far from one and zero, some of them negative."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=g)
            parameter.copy_(0.3 * noise if parameter.ndim > 1 else parameter + 0.7 * noise)
    return model.to(dtype), inputs


def ends(names, allowed) -> bool:
    return all(any(name.endswith(end) for end in allowed) for name in names) and (bool(names) == bool(allowed))


@pytest.mark.parametrize("name", [pytest.param(name, marks=OLDER.get(name, ())) for name in FOLDED])
def test_the_function_stays_and_gains_become_one(name):
    model, inputs = made(name)
    before = {n: t.clone() for n, t in tensors_of(model).items()}
    folded = iw.fold(model, inputs)
    added, kept = FOLDED[name]
    assert type(folded.model) is type(model)
    assert ends(folded.added, added) and ends([k.tensor for k in folded.kept], kept)
    assert folded.proof.error < 1e-13 < 1e-4 < folded.proof.control
    iw.testing.assert_same_function(model, folded.model, inputs)
    assert all(torch.equal(t, before[n]) for n, t in tensors_of(model).items())
    assert {n: t.dtype for n, t in tensors_of(folded.model).items() if n in before} == {
        n: t.dtype for n, t in before.items()
    }
    one = 0.0 if name == "GemmaForCausalLM" else 1.0
    for key, parameter in folded.model.named_parameters():
        if "norm" in key.lower() or ".ln_" in key:
            wanted = one if key.endswith("weight") else 0.0
            assert any(k.tensor == key for k in folded.kept) or bool((parameter == wanted).all()), key


def test_a_llama_is_moved_by_an_element_of_its_group():
    """Without zeros among the gains a fold is the element of the scales that brings every gain to one."""
    model, inputs = made("LlamaForCausalLM", torch.float64)
    untied = iw.fold(model, inputs).model
    old = fold_norm_gains(model, inputs)
    norms = [n for n in tensors_of(untied) if "norm" in n]
    assert all(bool((tensors_of(untied)[n] == 1).all()) for n in norms)
    assert relative_error(outputs(old, inputs), outputs(untied, inputs)) < 1e-6


def test_streams_of_layer_norms_are_centred_and_value_biases_are_gone():
    model, inputs = made("GPT2LMHeadModel", torch.float64)
    folded = iw.fold(model, inputs)
    state = tensors_of(folded.model)
    for name in ("transformer.wte.weight", "transformer.wpe.weight", "transformer.h.1.attn.c_proj.weight"):
        assert float(state[name].mean(-1).abs().max()) < 1e-14
    assert float(state["transformer.h.0.mlp.c_fc.weight"].mean(0).abs().max()) < 1e-14  # reads centred features
    queries, keys, values = state["transformer.h.1.attn.c_attn.bias"].split(16)
    assert bool((values == 0).all()) and bool((keys == 0).all()) and bool((queries != 0).all())
    assert folded.changed["transformer.h.1.attn.c_attn.bias"] == ("norms", "biases")


def test_heads_are_read_in_the_singular_vectors_of_what_they_pass():
    model, inputs = made("GPT2LMHeadModel", torch.float64)
    folded = iw.fold(model, inputs, heads=True)
    before = tensors_of(iw.fold(model, inputs).model)
    after = tensors_of(folded.model)
    for layer in range(2):
        weights, outs = (f"transformer.h.{layer}.attn.{name}.weight" for name in ("c_attn", "c_proj"))
        v = after[weights][:, 32:36]  # the first head's values, of four numbers
        o = after[outs][:4]
        singular = torch.linalg.svdvals(before[weights][:, 32:36] @ before[outs][:4])[:4]
        assert torch.allclose(v.T @ v, torch.diag(singular), atol=1e-10)
        assert torch.allclose(o @ o.T, torch.diag(singular), atol=1e-10)


def test_steps_can_be_left_out():
    model, inputs = made("GPT2LMHeadModel", torch.float64)
    gains = iw.fold(model, inputs, center=False, biases=False)
    state = tensors_of(gains.model)
    assert bool((state["transformer.h.0.ln_1.weight"] == 1).all()) and bool(
        (state["transformer.h.0.ln_1.bias"] != 0).any()
    )
    biases = iw.fold(model, inputs, norms=False, center=False)
    state = tensors_of(biases.model)
    assert bool((state["transformer.h.0.ln_1.bias"] == 0).all()) and bool(
        (state["transformer.h.0.ln_1.weight"] != 1).any()
    )
    with pytest.raises(ValueError, match=r"norms, center, biases or heads must be requested\. Got none"):
        iw.fold(model, inputs, norms=False, center=False, biases=False)


def test_without_extension_what_needs_it_is_kept_and_named():
    model, inputs = made("GPT2LMHeadModel")
    folded = iw.fold(model, inputs, extend=False)
    reasons = {k.tensor: k.reason for k in folded.kept}
    assert not folded.added and "is also read by" in reasons["transformer.ln_f.weight"]
    assert set(folded.model.state_dict()) == set(model.state_dict())
    with pytest.raises(
        ValueError, match=r"norms must be foldable. Got transformer.ln_f.weight: transformer.wte.weight"
    ):
        iw.fold(model, inputs, extend=False, strict=True)


def test_biases_stay_where_none_may_be_added_to_take_them_and_the_rest_folds():
    model, inputs = made("Qwen2ForCausalLM")
    folded = iw.fold(model, inputs, extend="ties")
    assert "norms" in folded.changed["model.layers.0.self_attn.q_proj.weight"]
    assert ends([kept.tensor for kept in folded.kept], {"v_proj.bias"})
    assert all("o_proj has no bias to take it" in kept.reason for kept in folded.kept)
    iw.testing.assert_same_function(model, folded.model, inputs)
    for how in ({"strict": True}, {"norms": False, "center": False}):  # where not all is done, or nothing
        with pytest.raises(ValueError, match=r"biases must be foldable. Got .*v_proj.bias: .*o_proj has no bias"):
            iw.fold(model, inputs, extend="ties", **how)


def test_norms_after_the_addition_are_refused_by_name():
    model, inputs = made("BertForSequenceClassification")
    with pytest.raises(ValueError, match=r"norms must be foldable. Got bert.embeddings.LayerNorm.weight: add in"):
        iw.fold(model, inputs, strict=True)
    folded = iw.fold(model, inputs, norms=False)
    iw.testing.assert_same_function(model, folded.model, inputs)


class Branch(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.act, self.last = nn.Linear(3, 6), nn.LayerNorm(6), act, nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.act(self.norm(self.first(x))))


def test_a_gain_with_zeros_and_a_model_of_ones_own():
    torch.manual_seed(0)
    model = Branch(nn.Identity()).double()
    with torch.no_grad():
        model.norm.weight.copy_(torch.tensor([0.0, 1.5, -2, 0.3, 0, 1]))
        model.norm.bias.normal_()
    x = torch.randn(5, 3).double()
    folded = iw.fold(model, x)
    assert folded.proof.error < 1e-14 and bool((folded.model.norm.weight == 1).all())
    with pytest.raises(ValueError, match=r"norm.weight has zeros where the bias has none"):
        iw.fold(model, x, biases=False)
    branch = Branch(nn.GELU()).double()
    nn.init.normal_(branch.norm.weight)
    with pytest.raises(ValueError, match=r"norms must be foldable. Got norm.weight: gelu in act reads it"):
        iw.fold(branch, x)


def test_a_norm_that_runs_twice_before_one_weight_folds_and_before_two_does_too():
    torch.manual_seed(0)
    twice = Made(lambda m, x: m.b(m.norm(m.a(m.norm(x)))), norm=nn.LayerNorm(6), a=nn.Linear(6, 6), b=nn.Linear(6, 2))
    nn.init.normal_(twice.norm.weight)
    nn.init.normal_(twice.norm.bias)
    model, x = twice.double(), torch.randn(5, 6).double()
    folded = iw.fold(model, x)
    assert folded.proof.error < 1e-14 and bool((folded.model.norm.weight == 1).all())


def test_a_weight_shared_by_two_norms_is_not_folded():
    torch.manual_seed(0)
    shared = Made(
        lambda m, x: m.both(m.two(m.both(m.one(x)).relu())), one=nn.LayerNorm(6), two=nn.LayerNorm(6),
        both=nn.Linear(6, 6),
    )  # fmt: skip
    for norm in (shared.one, shared.two):
        nn.init.normal_(norm.weight)
    with pytest.raises(ValueError, match=r"both.weight is also read by"):
        iw.fold(shared.double(), torch.randn(5, 6).double())


def test_a_packed_bias_that_is_cut_at_different_rows_is_pushed_part_by_part():
    """Cross attention cuts queries from keys and values, self attention cuts all three."""

    torch.manual_seed(0)
    reader = Made(
        lambda m, x, y: m.head(m.attention(x, y, y)[0] + m.attention(y, y, y)[0].mean(1, keepdim=True)),
        attention=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 2),
    )  # fmt: skip
    model, made = reader.double().eval(), lambda: (torch.randn(3, 4, 8).double(), torch.randn(3, 5, 8).double())
    nn.init.normal_(model.attention.in_proj_bias)
    folded = iw.fold(model, made())
    iw.testing.assert_same_function(model, folded.model, made())
    assert (folded.model.attention.in_proj_bias[16:] == 0).all()  # of values


def test_a_table_that_is_read_in_part_takes_nothing_in():
    """Longer inputs read rows of the position embedding that would not have the bias."""

    torch.manual_seed(0)
    positions = Made(
        lambda m, x: m.head(m.norm(m.stem(x) + m.table[:, : x.shape[1]])), stem=nn.Linear(6, 5), norm=nn.LayerNorm(5),
        head=nn.Linear(5, 2), table=nn.Parameter(torch.randn(1, 16, 5)),
    )  # fmt: skip
    model = positions.double()
    folded = iw.fold(model, torch.randn(3, 6, 6).double())
    iw.testing.assert_same_function(model, folded.model, torch.randn(3, 9, 6).double())
    assert folded.changed


class Attention(nn.Module):
    """Attention by hand; ``shares`` are the attention weights that are used."""

    def __init__(self, shares):
        super().__init__()
        self.norm, self.v, self.head, self.shares = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 2), shares

    def forward(self, x):
        y = self.norm(x)
        return self.head(self.shares(torch.cat([y @ y.mT, y[..., :1]], -1)) @ self.v(y))


@pytest.mark.parametrize(
    ("shares", "passes"),
    [
        (lambda s: s[..., :-1].softmax(-1), True),
        (lambda s: s[..., :-1].softmax(-1).unflatten(-1, (1, -1)).flatten(-2), True),
        (lambda s: s.softmax(-1)[..., :-1], False),  # a sink takes its part
        (lambda s: s[..., :-1].softmax(-1).mT, False),
        (lambda s: s[..., :-1].softmax(-2), False),
    ],
)
def test_biases_pass_attention_only_where_its_rows_sum_to_one(shares, passes):
    torch.manual_seed(0)
    model = Attention(shares).double()
    folded = iw.fold(model, torch.randn(3, 5, 6).double())
    assert bool((folded.model.v.bias == 0).all()) == passes


def generic(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand_like(parameter))
    return model


def upwards(bias: bool):
    """A norm before a transposed convolution, and a parameter that is returned as it is."""
    return Made(
        lambda m, x: (m.up(m.norm(x).permute(0, 3, 1, 2)), m.temperature), norm=nn.LayerNorm(4, bias=bias),
        up=nn.ConvTranspose2d(4, 6, 2, 2), temperature=nn.Parameter(torch.ones(3)),
    )  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
def test_a_transposed_convolution_takes_gains_in_and_no_offsets(bias: bool):
    model, x = generic(upwards(bias)).double(), torch.randn(2, 3, 3, 4).double()
    found = iw.fold(model, x, center=False, biases=False)
    assert "norms" in found.changed["up.weight"]
    assert bool((found.model.norm.weight == 1).all())
    if bias:
        with pytest.raises(ValueError, match="cannot take an offset"):
            iw.fold(model, x, norms=False, center=False)


def test_a_weight_that_is_returned_is_not_folded():
    tied = Made(lambda m, x: (m.out(m.norm(x)), m.out.weight), norm=nn.LayerNorm(4), out=nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"out.weight is also read by whoever calls the model"):
        iw.fold(generic(tied), torch.randn(5, 4), center=False)


class Picked(nn.Module):
    """A stream of which a mask over examples and positions picks rows, as models of several kinds of tokens do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.heads = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 3)])

    def forward(self, tokens):
        x = self.table(tokens)
        x = x + self.inner(x)
        return self.heads[0](self.norms[0](x)), self.heads[1](self.norms[1](x[tokens == 5]))


@pytest.mark.parametrize("tokens", [[[1, 2, 3], [4, 6, 7]], [[1, 5, 3], [4, 6, 5]]], ids=["no row", "two rows"])
def test_a_mask_of_several_axes_picks_rows_or_none(tokens):
    model = generic(Picked())
    folded = iw.fold(model, torch.tensor(tokens))
    assert all(torch.equal(norm.weight, torch.ones(8)) for norm in folded.model.norms[: 1 + (5 in tokens[0])])
    iw.testing.assert_same_function(model, folded.model, torch.tensor(tokens))


def test_experts_that_no_example_reaches_keep_their_gain():
    model, inputs = made("MixtralForCausalLM")
    few = {"input_ids": inputs["input_ids"][:1, :1]}
    folded = iw.fold(model, few)
    why = "picks from it" if is_older("transformers", "5.0") else "this run does not read all of"
    assert all(why in kept.reason for kept in folded.kept) and len(folded.kept) == 2
    iw.testing.assert_same_function(model, folded.model, inputs)
    assert folded.certified == "inputs that take the path of the example"


@pytest.mark.parametrize("between", [nn.ReLU(), nn.BatchNorm1d(4), nn.RMSNorm(4)], ids=str)
def test_a_network_with_nothing_to_fold_is_kept_whatever_its_kind(between):
    model, x = nn.Sequential(nn.Linear(3, 4), between, nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(5, 3)
    found = iw.fold(model, x)
    assert not found.changed and found.summary().startswith("nothing to fold: ")
    assert torch.equal(found.model(x), model(x)) and folded(model, x) is model


def test_bad_inputs_are_refused_before_work_starts():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module. Got 'gpt2'"):
        iw.fold("gpt2", torch.zeros(2, 3))
    with torch.device("meta"):
        model = Branch(nn.Identity())
    with pytest.raises(ValueError, match=r"model must hold weights. Got 'first.weight' on the meta device"):
        iw.fold(model, torch.zeros(2, 3, device="meta"))
    quantised = Branch(nn.Identity())
    quantised.last.weight = nn.Parameter(torch.zeros(2, 6, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match=r"weights must be real numbers. Got torch.uint8 in 'last.weight'"):
        iw.fold(quantised, torch.zeros(2, 3))


def test_experts_whose_rows_depend_on_the_data_do_not_end_the_fold():
    """Products by group of routed rows take other numbers of rows than a probe does: a reason to keep, no crash."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=8,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(1 + torch.rand_like(p)) if "norm" in name else None
    inputs = {"input_ids": torch.randint(30, (2, 16))}
    folded = iw.fold(model, inputs)
    torch.testing.assert_close(folded.model(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
