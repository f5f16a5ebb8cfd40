"""Checkpoints of one model in the names and layouts of other code."""

import torch
from torch import Tensor

State = dict[str, Tensor]


def renamed(state: State, words: dict[str, str]) -> State:
    """Names with some words replaced."""
    found = {}
    for name, tensor in state.items():
        for old, new in words.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


def transposed(state: State, words: tuple[str, ...]) -> State:
    """A checkpoint with the matrices whose names contain one of some words transposed."""
    return {n: x.T.contiguous() if x.ndim == 2 and any(w in n for w in words) else x for n, x in state.items()}


def fused(state: State, parts: tuple[str, ...], into: str, dim: int = 0) -> State:
    """Tensors side by side as one."""
    found = {}
    for name, x in state.items():
        if parts[0] in name:
            some = [state[name.replace(parts[0], part)] for part in parts]
            found[name.replace(parts[0], into)] = torch.cat(some, dim if x.ndim > 1 else 0)
        elif not any(part in name for part in parts):
            found[name] = x
    return found


def fused_by_head(state: State, parts: tuple[str, ...], into: str, heads: int) -> State:
    """Query, key and value of one head after those of the other."""
    found = {}
    for name, x in state.items():
        if parts[0] in name:
            some = [state[name.replace(parts[0], part)].unflatten(0, (heads, -1)) for part in parts]
            found[name.replace(parts[0], into)] = torch.cat(some, 1).flatten(0, 1)
        elif not any(part in name for part in parts):
            found[name] = x
    return found


def to_pairs(x: Tensor, heads: int) -> Tensor:
    """Rotary dimensions of a query or key in interleaved pairs rather than in halves, as Meta's Llama has them."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


META = {
    "model.embed_tokens": "tok_embeddings", "lm_head": "output", "model.norm": "norm", "model.layers": "layers",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attention_norm",
}  # fmt: skip


def meta(state: State, heads: int, key_heads: int) -> State:
    """A Llama of transformers as Meta stores it."""
    counts = {"q_proj": heads, "k_proj": key_heads}
    turned = {n: next((to_pairs(x, c) for word, c in counts.items() if word in n), x) for n, x in state.items()}
    return renamed(turned, META)
