"""Calls that one device recorded run on another, and can be trained through."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from intertwine.programs import capture
from intertwine.programs.program import run_call


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).movedim(2, 0).transpose(2, 3)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def test_attention_of_another_device_runs_here_and_has_gradients():
    call = next(c for c in capture(Attention().eval(), (torch.randn(2, 5, 8),)).calls if "dot_product" in c.op)
    given = {"query": call.args["query"], "key": call.args["key"], "value": call.args["value"]}
    on_gpu = replace(
        call, op="aten::_scaled_dot_product_efficient_attention",
        func=torch.ops.aten._scaled_dot_product_efficient_attention.default,
        args={**given, "attn_bias": None, "compute_log_sumexp": False, "dropout_p": 0.0, "is_causal": True},
    )  # fmt: skip
    q, k, v = tensors = torch.randn(3, 2, 2, 5, 4, dtype=torch.float64, requires_grad=True).unbind()
    found = run_call(on_gpu, {ref.id: t for ref, t in zip(given.values(), tensors)})[0]
    assert torch.allclose(found, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert torch.autograd.grad(found.sum(), v)[0].abs().sum() > 0


def test_heads_that_share_keys_run():
    torch.manual_seed(0)
    call = next(c for c in capture(Attention().eval(), (torch.randn(2, 5, 8),)).calls if "dot_product" in c.op)
    names = "query", "key", "value"
    q, k, v = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    found = run_call(call, {call.args[name].id: t for name, t in zip(names, (q, k, v))})[0]
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    assert torch.allclose(found, F.scaled_dot_product_attention(q, *wide, is_causal=True), atol=1e-6)
