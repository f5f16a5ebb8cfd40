"""Checkpoints in other names and layouts are recognised by what they hold."""

import copy

import pytest
import torch
from edits import HEADS, decoder, edited, hidden_units, kinds, lora, said, tokens
from layouts import fused, fused_by_head, meta, renamed, to_pairs, transposed

import intertwine as iw

NAMES = {"blocks.": "transformer.h.", ".norm1.": ".ln_1.", ".norm2.": ".ln_2.", ".up.": ".mlp.c_fc.",
         ".down.": ".mlp.c_proj.", "embed.": "wte.", "head.": "lm_head.", ".o.": ".attn.c_proj."}  # fmt: skip
QKV = (".q.", ".k.", ".v.")


@pytest.fixture(scope="module")
def sym():
    return iw.symmetries(decoder(), tokens())


def state(model=None):
    return {n: x.detach().clone() for n, x in (model or decoder()).state_dict().items()}


def both_ways(other, sym):
    """The difference to and from a checkpoint in other code's layout."""
    forth, back = iw.diff(decoder(), other, tokens(), sym), iw.diff(other, decoder(), tokens(), sym)
    for found in (forth, back):
        assert found.same_function and found.output_error == 0 and not found.ambiguous, str(found)
    return forth, back


def test_other_names(sym):
    forth, back = both_ways(renamed(state(), NAMES), sym)
    assert kinds(forth) == kinds(back) == {"renamed"}
    assert "embed.weight is now wte.weight" in said(forth, "renamed")
    assert "embed.weight was wte.weight" in said(back, "renamed")


def test_matrices_the_other_way_round(sym):
    other = transposed(renamed(state(), NAMES), ("c_fc", "c_proj", ".q.", ".k.", ".v."))
    assert all(kinds(found) == {"renamed", "transposed"} for found in both_ways(other, sym))
    found = iw.diff(decoder(), transposed(state(), (".q.", ".k.", ".o.")), tokens(), sym)
    assert found.same_function and kinds(found) == {"transposed"}  # square ones, of equal names and shapes


def test_fused_query_key_value(sym):
    forth, back = both_ways(fused(state(), QKV, ".attn.qkv."), sym)
    assert kinds(forth) == {"renamed", "fused"} and kinds(back) == {"renamed", "split"}
    forth, back = both_ways(transposed(fused(renamed(state(), NAMES), QKV, ".attn.c_attn."), ("c_attn",)), sym)
    assert kinds(forth) == {"renamed", "fused", "transposed"}
    forth, _ = both_ways(fused_by_head(state(), QKV, ".attn.qkv.", HEADS), sym)
    assert kinds(forth) == {"renamed", "fused"}


def test_a_fused_model_from_separate_tensors():
    torch.manual_seed(0)
    fusing = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0).eval()
    x = torch.randn(2, 5, 16)
    own = state(fusing)
    q, k, v = own["self_attn.in_proj_weight"].chunk(3)
    separate = {n: t for n, t in own.items() if "in_proj" not in n} | {
        "a.q.weight": q,
        "a.k.weight": k,
        "a.v.weight": v,
    }
    separate |= {f"a.{c}.bias": t for c, t in zip("qkv", own["self_attn.in_proj_bias"].chunk(3))}
    found = iw.diff(separate, fusing, x)
    assert found.same_function and "fused" in kinds(found), str(found)
    assert "3 each, one after the other: q + k + v" in said(found, "fused")


def test_edits_are_seen_through_conversions(sym):
    other = transposed(fused(renamed(state(edited(decoder(), lora)), NAMES), QKV, ".attn.c_attn."), ("c_attn", "c_fc"))
    found = iw.diff(decoder(), other, tokens(), sym)
    assert not found.same_function and {"fused", "low rank"} <= kinds(found)
    assert {t.rank for t in found.tensors if not t.settled} == {4}
    other = renamed(state(edited(decoder(), hidden_units)), NAMES)
    found = iw.diff(decoder(), other, tokens(), sym)
    assert found.same_function and kinds(found) == {"renamed", "permuted"}


def test_names_and_units_changed_together(sym):
    moved = sym.act(sym.random(seed=3, kinds=["permutation"]), decoder())
    found = iw.diff(decoder(), renamed(state(moved), NAMES), tokens(), sym)
    assert found.same_function and {"renamed", "permuted"} <= kinds(found), str(found)


def test_gains_that_say_nothing_follow_their_layers(sym):
    plain = decoder()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            if "norm" in name:
                p.fill_(float(name.endswith("weight")))
    found = iw.diff(plain, renamed(state(plain), NAMES), tokens(), sym)
    assert found.same_function and "renamed" in kinds(found)
    assert not {t.kind for t in found.tensors} & {"new", "missing"}


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, intermediate_size=48, **settings)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p += 0.1 * torch.randn_like(p)
    return model, {"input_ids": torch.randint(0, 64, (2, 7)), "use_cache": False}


def test_llama_of_meta_and_of_transformers(llama):
    model, x = llama
    other = meta(state(model), 4, 2)
    forth, back = iw.diff(model, other, x), iw.diff(other, model, x)
    assert forth.same_function and back.same_function
    assert kinds(forth) == kinds(back) == {"renamed", "rotary"}
    assert "from halves to interleaved pairs of heads of 8 dimensions" in said(forth, "rotary")
    assert "from interleaved pairs to halves of heads of 8 dimensions" in said(back, "rotary")


def test_rotary_layout_under_the_same_names_is_another_function(llama):
    model, x = llama
    turned = copy.deepcopy(model)
    with torch.no_grad():
        for layer in turned.model.layers:
            layer.self_attn.q_proj.weight.copy_(to_pairs(layer.self_attn.q_proj.weight, 4))
            layer.self_attn.k_proj.weight.copy_(to_pairs(layer.self_attn.k_proj.weight, 2))
    found = iw.diff(model, turned, x)
    assert kinds(found) == {"rotary"} and "4 tensors permuted as rotary conversion does" in said(found, "rotary")
    assert not found.same_function and "laid out for other code" in found.reason


def test_gpt2_of_transformers_and_without_conv1d():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=16, vocab_size=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    x = {"input_ids": torch.randint(0, 64, (2, 7)), "use_cache": False}
    found = iw.diff(model, transposed(state(model), ("c_attn", "c_proj", "c_fc")), x)
    assert found.same_function and kinds(found) == {"transposed"} and "8 tensors" in said(found, "transposed")
    base = {n.removeprefix("transformer."): t for n, t in state(model).items() if "lm_head" not in n}
    found = iw.diff(model, base, x)
    assert found.same_function and kinds(found) == {"renamed"}


def test_vit_of_timm_and_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)
    model = transformers.ViTForImageClassification(config).eval()
    own = state(model)
    parts = tuple(
        next(n for n in own if word in n).partition(".0.")[2].removesuffix("weight").removesuffix("bias")
        for word in ("query" if any("query" in n for n in own) else "q_proj",
                     "key" if any("key" in n for n in own) else "k_proj",
                     "value" if any("value" in n for n in own) else "v_proj")
    )  # fmt: skip
    words = {"vit.embeddings.cls_token": "cls_token", "vit.embeddings.position_embeddings": "pos_embed",
             "vit.embeddings.patch_embeddings.projection": "patch_embed.proj", "vit.layernorm": "norm",
             "classifier": "head", "layernorm_before": "norm1", "layernorm_after": "norm2"}  # fmt: skip
    timm = renamed(fused(own, parts, "attn.qkv."), words)
    found = iw.diff(timm, model, torch.randn(2, 3, 16, 16))
    assert found.same_function and kinds(found) <= {"renamed", "split"}, str(found)
    assert "split" in kinds(found)


def test_unrelated_networks_of_other_names_are_refused(sym):
    other = renamed(state(decoder(seed=7)), {n: f"other_{n}" for n in ("embed", "blocks", "norm", "head")})
    with pytest.raises(ValueError, match="found by what it holds"):
        iw.diff(decoder(), {n: x for n, x in other.items() if x.ndim > 1}, tokens(), sym)


def test_what_is_ambiguous_is_listed(sym):
    twice = decoder()
    with torch.no_grad():
        twice.blocks[2].up.weight.copy_(twice.blocks[1].up.weight)  # under other numbers nothing tells them apart
    other = {n.replace("blocks.", "part_").replace(".up.", ".wide."): x for n, x in state(twice).items()}
    found = iw.diff(twice, other, tokens(), sym)
    assert any("may be any of 2 tensors with equal values" in said for said in found.ambiguous), found.ambiguous
    assert "ambiguous:" in found.summary()


def test_renamed_permuted_and_tuned_is_compared_in_order_and_said_so(sym):
    tuned = decoder()
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.02 * p.std().nan_to_num() * torch.randn_like(p))
    moved = sym.act(sym.random(seed=3, kinds=["permutation"]), tuned)
    found = iw.diff(decoder(), renamed(state(moved), NAMES), tokens(), sym)
    assert not found.same_function and "permuted" in kinds(found), str(found)
    assert max(t.relative for t in found.tensors) < 0.1
