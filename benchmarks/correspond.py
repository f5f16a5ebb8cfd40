"""Seconds and memory of ``correspond``: ResNet-50, ViT-B, Llamas of growing depth on meta; share of the proof.

Budgets: ResNet-50 and ViT-B 5 s each without the proof, a Llama of 80 layers on meta 30 s and 2 GB; near-linear in
operations.

Run: python benchmarks/correspond.py [--quick]
"""

import resource
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import intertwine as iw

torch.set_num_threads(1)


def measure(name: str, a: nn.Module, b: nn.Module, x: object) -> None:
    """Print what one pair costs."""
    started = time.perf_counter()
    found = iw.correspond(a.eval(), b.eval(), x)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    said = f"error {found.error:.0e}" if found.error is not None else "not proved"
    print(f"{name:<28} {seconds:6.2f} s, peak {peak:.2f} GiB so far, {len(found.entries)} entries, {said}", flush=True)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A model without numbers."""
    with torch.device("meta"):
        return make()


def llama(layers: int) -> nn.Module:
    """A Llama of the width of the one with 70 billion weights."""
    config = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=layers, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    return on_meta(lambda: LlamaForCausalLM._from_config(config, dtype=torch.bfloat16))


quick = "--quick" in sys.argv
ids = torch.zeros(2, 16, dtype=torch.long, device="meta")
for layers in (5, 10) if quick else (5, 10, 20, 40, 80):
    measure(f"Llama, {layers} layers, meta", llama(layers), llama(layers), ids)
x = torch.randn(2, 3, 224, 224)
for name, make in (
    ("ResNet-50", lambda: ResNetForImageClassification(ResNetConfig())),
    ("ViT-B", lambda: ViTForImageClassification(ViTConfig())),
):
    a, b = on_meta(make), on_meta(make)
    measure(f"{name}, meta", a, b, x.to("meta"))
    if not quick:
        measure(f"{name}, with the proof", make(), make(), x)
