"""Seconds and memory of ``correspond``: ResNet-50, ViT-B, Llamas of growing depth on meta; share of the proof.

Budgets: ResNet-50 and ViT-B 5 s each without the proof, a Llama of 80 layers on meta 30 s and 2 GB; near-linear in
operations.

Seconds are those of the processor, so that other work on the machine does not count. The growth with layers is drawn
(--plot PATH).

Run: python benchmarks/correspond.py [--quick] [--plot docs/images/correspond-layers.svg]
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import pyplot
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


def measure(name: str, a: nn.Module, b: nn.Module, x: object) -> float:
    """Print what one pair costs; its seconds of processor time, which other work on the machine does not lengthen."""
    started = time.process_time()
    found = iw.correspond(a.eval(), b.eval(), x)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    said = f"error {found.error:.0e}" if found.error is not None else "not proved"
    print(f"{name:<28} {seconds:6.2f} s, peak {peak:.2f} GiB so far, {len(found.entries)} entries, {said}", flush=True)
    return seconds


def drawn(points: dict[int, float], path: Path) -> None:
    """Seconds by the number of layers, beside the line through the first point."""
    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    first, last = min(points), max(points)
    axes.plot([0, last], [0, points[first] * last / first], color="0.7", label="in proportion to the layers")
    axes.plot(list(points), list(points.values()), "o-", label="correspond")
    axes.set(xlabel="layers of a Llama on the meta device", ylabel="seconds of processor time", xlim=(0, None))
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    figure.savefig(path)


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
depths = (5, 10) if quick else (5, 10, 20, 40, 60, 80)
points = {n: measure(f"Llama, {n} layers, meta", llama(n), llama(n), ids) for n in depths}
if "--plot" in sys.argv:
    drawn(points, Path(sys.argv[sys.argv.index("--plot") + 1]))
x = torch.randn(2, 3, 224, 224)
for name, make in (
    ("ResNet-50", lambda: ResNetForImageClassification(ResNetConfig())),
    ("ViT-B", lambda: ViTForImageClassification(ViTConfig())),
):
    a, b = on_meta(make), on_meta(make)
    measure(f"{name}, meta", a, b, x.to("meta"))
    if not quick:
        measure(f"{name}, with the proof", make(), make(), x)
