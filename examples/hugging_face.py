# %% [markdown]
# # Checkpoints of transformers
#
# Everything works on models of transformers, and on directories written by `save_pretrained` (`hf:DIRECTORY` on the
# command line). Nothing is downloaded: fetch a model from the hub first. Here a tiny Llama stands in.

# %%
import copy

import torch
import transformers

import intertwine as iw

transformers.utils.logging.disable_progress_bar()
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
base = transformers.LlamaForCausalLM(config).eval()
with torch.no_grad():
    for name, gain in base.named_parameters():
        if "norm" in name:
            gain.uniform_(0.5, 2)  # as after training
tokens = torch.randint(96, (4, 16))

# %% [markdown]
# ## Was one made from the other?
#
# We make a copy with moved units and heads, a fine-tuned model (an update of rank 2), and a model from another seed.
# `same` decides whether two models are the same up to symmetry, `lineage` whether they were trained independently, and
# `diff` what was changed. The example inputs only serve to trace the model.

# %%
sym = iw.symmetries(base, tokens)
moved = sym.act(sym.random(seed=1), base)
tuned = copy.deepcopy(base)
with torch.no_grad():
    for layer in tuned.model.layers:
        layer.self_attn.q_proj.weight += 0.05 * torch.randn(32, 2) @ torch.randn(2, 32)
torch.manual_seed(1)
stranger = transformers.LlamaForCausalLM(config).eval()

for name, other in {"moved": moved, "tuned": tuned, "stranger": stranger}.items():
    print(f"{name:9} {iw.same(base, other, tokens).verdict}")

# %%
print(iw.lineage(base, tuned, tokens))

# %%
print(iw.diff(base, tuned, tokens))

# %% [markdown]
# On the command line: `intertwine same base tuned`, `intertwine lineage base tuned`, `intertwine diff base tuned`,
# where `base` and `tuned` are directories.
#
# ## What may a quantiser do?

# %%
print(sym.mappings("llm-compressor").summary())

# %% [markdown]
# ## Fold, rotate, save
#
# The result holds a new model of the same class, as `.model`.

# %%
folded = iw.fold(base, tokens)
rotated = iw.rotate(folded.model, tokens)
print(folded)
print(rotated)
rotated.model.save_pretrained("rotated")
again = transformers.LlamaForCausalLM.from_pretrained("rotated").eval()
print(f"change of the logits after loading: {iw.testing.function_error(base, again, tokens):.0e}")

# %% [markdown]
# ## Layer by layer

# %%
comparison = iw.compare(base, tuned, torch.randint(96, (64, 16)).split(16))
print(comparison.headline)
comparison

# %%
page = iw.diff(base, tuned, tokens).to_html("diff-llama.html")
