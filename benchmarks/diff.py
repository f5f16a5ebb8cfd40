"""Seconds and memory of ``diff`` on a BERT of 7 million weights: tuned in place, heads permuted, cast, other names.

Run: python benchmarks/diff.py
"""

import copy
import resource
import time

import torch
from transformers import BertConfig, BertModel

import intertwine as iw

torch.set_num_threads(1)
torch.manual_seed(0)
config = BertConfig(
    vocab_size=600, hidden_size=256, num_hidden_layers=12, num_attention_heads=4, intermediate_size=512,
    max_position_embeddings=512,
)  # fmt: skip
base = BertModel(config).eval()
x = {"input_ids": torch.randint(0, 600, (2, 16))}
sym = iw.symmetries(base, x)

tuned = copy.deepcopy(base)
with torch.no_grad():
    for p in tuned.parameters():
        p += 0.1 * p.std().nan_to_num(0) * torch.randn_like(p)
cases = {
    "the same": base,
    "tuned in place": tuned,
    "units permuted": sym.act(sym.random(seed=1, kinds=["permutation"]), base),
    "cast to bfloat16": copy.deepcopy(base).bfloat16().float(),
    "other names": {f"encoder_{n}": p for n, p in base.state_dict().items()},
}
print(f"{sum(p.numel() for p in base.parameters()):,} weights")
for name, other in cases.items():
    started, cpu = time.perf_counter(), time.process_time()
    found = iw.diff(base, other, x, sym)
    wall, used = time.perf_counter() - started, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kinds = ", ".join(sorted({f.kind for f in found.findings})) or "nothing"
    print(f"{name:<18} {wall:6.1f} s ({used:.1f} s of one CPU), {memory:,.0f} MB at most so far: {kinds}")
