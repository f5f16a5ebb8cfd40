"""Folds beside TransformerLens, which folds GPT-2 and Llama by hand: the same weights, up to what softmax ignores."""

import pytest
import torch
import transformers_zoo as hf_zoo
from noise import shaken

import intertwine as iw

CONVERT = {"GPT2LMHeadModel": "convert_gpt2_weights", "LlamaForCausalLM": "convert_llama_weights"}
KINDS = {
    "GPT2LMHeadModel": {"d_mlp": 64, "act_fn": "gelu_new", "normalization_type": "LN", "eps": 1e-5},
    "LlamaForCausalLM": {
        "n_key_value_heads": 2, "d_mlp": 24, "act_fn": "silu", "gated_mlp": True, "normalization_type": "RMS",
        "final_rms": True, "positional_embedding_type": "rotary", "rotary_dim": 4, "rotary_adjacent_pairs": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERT)
def test_the_same_weights_as_transformer_lens(name):
    pytest.importorskip("transformers")
    lens = pytest.importorskip("transformer_lens", exc_type=ImportError)
    conversions = pytest.importorskip("transformer_lens.pretrained.weight_conversions", exc_type=ImportError)
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    model.double()
    shaken(model, 0.3)
    common = {"n_layers": 2, "d_model": 16, "n_ctx": 16, "d_vocab": 37, "n_heads": 4, "d_head": 4, "device": "cpu"}
    config = lens.HookedTransformerConfig(**common, **KINDS[name], dtype=torch.float64)

    def converted(network):
        found = getattr(conversions, CONVERT[name])(network, config)
        return {key: t.double() for key, t in found.items() if torch.is_tensor(t) and t.is_floating_point()}

    peer = lens.HookedTransformer(config)
    centre = name == "GPT2LMHeadModel"
    peer.load_and_process_state_dict(converted(model), center_writing_weights=centre, center_unembed=False)
    folded = iw.fold(model, inputs).model
    ours, theirs = converted(folded), peer.state_dict()
    if folded.lm_head.bias is not None:
        ours["unembed.b_U"] = folded.lm_head.bias.detach()
    ignored = {key for key in ours if key.endswith("b_K")}  # softmax does not see them: zero here
    assert len(ours) > 20
    for key, tensor in ours.items():
        if key in ignored:
            assert bool((tensor == 0).all())
        else:
            assert torch.allclose(tensor, theirs[key], atol=1e-13), key
