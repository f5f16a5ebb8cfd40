# %% [markdown]
# # What did fine-tuning change?
#
# Three BERTs for chemical reactions are public in the package `rxnfp` (Schwaller et al., Nature Machine Intelligence
# 2021): one was pretrained to fill in masked parts of reactions, and two were fine-tuned from it to classify reactions.
# Their weights are enough to ask what fine-tuning did: do they really belong to one family, which tensors
# changed, and which layers now represent reactions differently?
#
# The wheel (75 MB) is downloaded and read, not installed; its weights are loaded as numbers only.

# %%
import subprocess
import sys
import zipfile
from io import BytesIO
from itertools import product
from pathlib import Path

import pandas as pd
import torch
import transformers

import intertwine as iw

wheels = Path("~/.cache/intertwine/wheels").expanduser()
fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), "rxnfp==0.1.0"]
if not list(wheels.glob("rxnfp-*.whl")) and subprocess.run(fetch, capture_output=True).returncode:
    raise ConnectionError("the wheel rxnfp 0.1.0 could not be downloaded. Run: pip download --no-deps rxnfp==0.1.0")
wheel = zipfile.ZipFile(next(wheels.glob("rxnfp-*.whl")))


def weights(folder):
    file = BytesIO(wheel.read(f"rxnfp/models/transformers/{folder}/pytorch_model.bin"))
    return torch.load(file, weights_only=True, map_location="cpu")


def bert(state):
    sizes = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 512}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=591, **sizes), add_pooling_layer=False)
    state = {name.removeprefix("bert."): x for name, x in state.items()}
    state = {name.replace("gamma", "weight").replace("beta", "bias"): x for name, x in state.items()}
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert not missing, missing
    return model.eval()


FOLDERS = {"pretrained": "bert_pretrained", "fine-tuned": "bert_ft", "fine-tuned on 10,000": "bert_ft_10k_25s"}
states = {name: weights(folder) for name, folder in FOLDERS.items()}
models = {name: bert(state) for name, state in states.items()}

# %% [markdown]
# ## Reactions to look at
#
# We assemble 240 reactions from parts: amide couplings, esterifications, Suzuki couplings, reductive aminations and
# saponifications, each with eight by six partners. They are written as SMILES and split into tokens of the models'
# own vocabulary.

# %%
aryl = [
    "c1ccccc1",
    "c1ccc(C)cc1",
    "c1ccc(OC)cc1",
    "c1ccc(F)cc1",
    "c1ccc(Cl)cc1",
    "c1ccncc1",
    "c1ccsc1",
    "c1ccc(C#N)cc1",
]
rest = ["C", "CC", "CCC", "C(C)C", "C1CC1", "CCOC"]
reactions = {
    "amide": [f"{a}C(=O)O.N{r}>>{a}C(=O)N{r}" for a, r in product(aryl, rest)],
    "ester": [f"{a}C(=O)O.O{r}>>{a}C(=O)O{r}" for a, r in product(aryl, rest)],
    "Suzuki": [f"Br{a}.OB(O){b}>>{b}-{a}" for a, b in product(aryl, aryl[:6])],
    "amination": [f"{a}C=O.N{r}>>{a}CN{r}" for a, r in product(aryl, rest)],
    "hydrolysis": [f"{a}C(=O)O{r}.[OH-]>>{a}C(=O)O" for a, r in product(aryl, rest)],
}
vocabulary = wheel.read("rxnfp/models/transformers/bert_pretrained/vocab.txt").decode().split("\n")
number = {token: k for k, token in enumerate(vocabulary)}


def tokens(smiles):
    """Tokens of a string: from the left, always the longest one of the vocabulary that fits."""
    found = []
    while smiles:
        size = next((n for n in range(min(12, len(smiles)), 0, -1) if smiles[:n] in number), 1)
        found.append(number.get(smiles[:size], number["[UNK]"]))
        smiles = smiles[size:]
    return [number["[CLS]"], *found, number["[SEP]"]]


kinds = [kind for kind, some in reactions.items() for _ in some]
rows = [tokens(smiles) for some in reactions.values() for smiles in some]
longest, padding = max(map(len, rows)), number["[PAD]"]
ids = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
batches = [{"input_ids": part, "attention_mask": (part != padding).long()} for part in ids[order].split(60)]
print(f"{len(ids)} reactions of up to {longest} tokens, {int((ids == number['[UNK]']).sum())} tokens unknown")

# %% [markdown]
# ## One family?
#
# `lineage` looks for the units of one network in the other, in any order and basis: networks that were trained
# independently agree only by chance. Fine-tuning leaves nearly all of the 12,336 hidden units in place.

# %%
example = {name: x[:2] for name, x in batches[0].items()}
pretrained, tuned, small = models.values()
for a, b in ((pretrained, tuned), (pretrained, small), (tuned, small)):
    print("\n".join(iw.lineage(a, b, example).summary().splitlines()[:2]), end="\n\n")

# %% [markdown]
# ## Which tensors changed
#
# `diff` says what is left once the symmetries are taken out. All tensors changed, most of them by about a tenth of
# their size. The last block changed most, by a quarter, and its changes have low rank: the second map of its MLP, with
# 256 outputs, changed along about eleven directions.

# %%
changed = iw.diff(pretrained, tuned, example)
print(changed.summary())

# %%
table = changed.to_frame()
block = table.tensor.str.extract(r"layer\.(\d+)\.")[0].dropna().astype(int).rename("block")
print(table.groupby(block)["relative change"].median().round(3).to_string())

# %% [markdown]
# ## Which layers represent reactions differently
#
# Linear CKA finds all layers alike, .96 to 1.00. It would do so for networks that learned nothing: two *untrained*
# BERTs of this architecture score .996, since most of the variance is what they have in common, namely which token
# is where. That is why `compare` gives the score of untrained networks with every score. Orthogonal Procrustes falls
# from .91 in the first block to .64 in the last, and the last blocks of the pretrained network are most similar to
# blocks in the middle of the fine-tuned one.

# %%
layers = [f"encoder.layer.{k}" for k in range(12)]
result = iw.compare(pretrained, tuned, batches, layers)
print(result.summary())
result.to_html("fine_tuning.html")

# %% [markdown]
# ## What fine-tuning was for
#
# The class is read from the first token. How much of this token's geometry is the class of the reaction? Linear CKA
# between its features and the five classes says so, block by block.

# %%
target = torch.eye(len(reactions))[[list(reactions).index(kind) for kind in kinds]][order]
rows = {}
for name, model in models.items():
    features = iw.features.collect(model, batches, layers)
    rows[name] = [iw.similarity.cka(features[layer][:, 0], target) for layer in layers]
print(pd.DataFrame(rows).round(2).to_string())

# %% [markdown]
# ## What we know now
#
# - The three networks are one family beyond doubt: at least 12,331 of 12,336 hidden units are still in place.
# - Fine-tuning changed every tensor by about a tenth, and the last block by a quarter, there along few directions.
# - It left the first blocks alone and rebuilt the last ones. The CKA of the first token with the class of the reaction
#   was .73 in the last block before fine-tuning; afterwards it is .90 and .95, and above .77 from the eighth block on.
# - Linear CKA between the networks alone would have said that nothing happened: it is .96 or more in all blocks, as it
#   is for untrained networks.
