"""CPU seconds for the mappings of a Llama-70B-like configuration on the meta device, by format.

python benchmarks/mappings.py
"""

import time

import torch
import transformers

import intertwine as iw
from intertwine.exchange import FORMATS

BUDGET = 10.0  # seconds for finding the symmetry and writing the mappings of llm-compressor

config = transformers.LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
    vocab_size=128256, use_cache=False,
)  # fmt: skip
with torch.device("meta"):
    model = transformers.LlamaForCausalLM(config)
    tokens = {"input_ids": torch.zeros(2, 8, dtype=torch.int64)}
started = time.process_time()
sym = iw.symmetries(model, tokens)
found = time.process_time() - started
print(f"{'symmetry':16} {found:6.1f} s")
for name in FORMATS:
    started = time.process_time()
    mappings = sym.mappings(name)
    took = time.process_time() - started
    within = f"; with the symmetry {found + took:.1f} s of {BUDGET:.0f}" if name == "llm-compressor" else ""
    print(f"{name:16} {took:6.1f} s, {len(mappings.entries)} entries, proved: {mappings.proved}{within}")
