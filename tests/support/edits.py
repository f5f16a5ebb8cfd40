"""A small transformer, other networks, and the one list of conversions and edits with what ``diff`` says about each."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from layouts import fused, fused_by_head, meta, renamed, to_pairs, transposed
from torch import Tensor, nn
from torch.nn import functional as F

import intertwine as iw

WIDTH, HEADS, HIDDEN, VOCABULARY = 16, 4, 32, 50


class Block(nn.Module):
    def __init__(self, width: int = WIDTH, heads: int = HEADS, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int = 2, vocabulary: int = VOCABULARY, hidden: int = HIDDEN, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block(hidden=hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def decoder(seed: int = 0, **settings) -> Decoder:
    """A network whose vectors differ from unit to unit, as trained ones do."""
    torch.manual_seed(seed)
    return _with_vectors(Decoder(**settings))


def _with_vectors(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p += 0.1 * torch.randn_like(p)
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))


def convolutional(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    ).eval()  # fmt: skip
    for norm in made:
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.normal_(norm.weight, 1, 0.1)
            nn.init.normal_(norm.bias, 0, 0.1)
    return made


Started = tuple[nn.Module, Any]
GPT2 = {"blocks.": "transformer.h.", ".norm1.": ".ln_1.", ".norm2.": ".ln_2.", ".up.": ".mlp.c_fc.",
        ".down.": ".mlp.c_proj.", "embed.": "wte.", "head.": "lm_head.", ".o.": ".attn.c_proj."}  # fmt: skip
QKV = (".q.", ".k.", ".v.")


@cache
def small(**settings) -> Started:
    return decoder(**settings), tokens()


one_layer, four_layers, tied = (partial(small, **s) for s in ({"layers": 1}, {"layers": 4}, {"tied": True}))


@cache
def perceptron() -> Started:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(
        5, 6
    )


@cache
def zeroed() -> Started:
    made, x = perceptron()
    made = copy.deepcopy(made)
    for layer in (made[0], made[2], made[4]):
        nn.init.zeros_(layer.bias)
    return made, x


@cache
def images() -> Started:
    return convolutional(), torch.randn(2, 3, 12, 12)


@cache
def encoder() -> Started:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0).eval(), torch.randn(2, 5, 16)


@cache
def llama(layers: int = 2, heads: int = 4) -> Started:
    """Heads that share keys by twos, 32 dimensions in all."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": heads}
    settings["num_key_value_heads"] = heads // 2
    config = transformers.LlamaConfig(vocab_size=64, intermediate_size=48, **settings)
    x = {"input_ids": torch.randint(0, 64, (2, 7)), "use_cache": False}
    return _with_vectors(transformers.LlamaForCausalLM(config)), x


@cache
def gpt2() -> Started:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=16, vocab_size=64)
    return _with_vectors(transformers.GPT2LMHeadModel(config)), {
        "input_ids": torch.randint(0, 64, (2, 7)),
        "use_cache": False,
    }


@cache
def vit() -> Started:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)
    return _with_vectors(transformers.ViTForImageClassification(config)), torch.randn(2, 3, 16, 16)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {n: x.detach().clone() for n, x in model.state_dict().items()}


@dataclass(frozen=True)
class Edit:
    """One conversion or edit.

    Attributes:
        change: Edits a copy of the network; its return value, if any, is the other checkpoint.
        says: All kinds of findings, with words that each must contain.
        same: Whether the function stays the same.
        start: The network, and what it is called with.
        back: What is said about the reverse edit, where that has another name.
    """

    change: Callable[[Any], object]
    says: dict[str, str]
    same: bool
    start: Callable[[], Started]
    back: dict[str, str] | None


EDITS: dict[str, Edit] = {}


def edit(
    name: str,
    says: dict[str, str],
    same: bool = False,
    start: Callable[[], Started] = small,
    back: dict[str, str] | None = None,
) -> Callable:
    def register(change: Callable[[Any], object]) -> Callable[[Any], object]:
        EDITS[name] = Edit(change, says, same, start, back)
        return change

    return register


def edited(model: nn.Module, change: Callable[[Any], object], seed: int = 1) -> Any:
    """The edited copy of the model, or what the edit returns."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        done = change(other)
    return done if isinstance(done, nn.Module | dict) else other


def kinds(found) -> set[str]:
    """Kinds of the findings of a difference."""
    return {f.kind for f in found.findings}


def said(found, kind: str) -> str:
    """What a difference says about one kind."""
    return " ".join(f.text for f in found.findings if f.kind == kind)


def matrices(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.ndim == 2]


def stacked(model: nn.Module, order: list[int]) -> nn.Module:
    """A network with some of its blocks, in the given order."""
    other = copy.deepcopy(model)
    other.blocks = nn.ModuleList(copy.deepcopy(model.blocks[k]) for k in order)
    return other


# conversions: other names, layouts and depths


@edit(
    "other names", {"renamed": "embed.weight is now wte.weight"}, same=True, back={"renamed": "embed.weight was wte."}
)
def names(model):
    return renamed(state(model), GPT2)


@edit(
    "names and Conv1D of GPT-2",
    {"renamed": "", "transposed": "12 tensors transposed: (inputs, outputs) instead of (outputs, inputs)"},
    same=True,
    back={"renamed": "", "transposed": "as Conv1D has it"},
)
def conv1d(model):
    return transposed(renamed(state(model), GPT2), ("c_fc", "c_proj", *QKV))


@edit("square matrices transposed", {"transposed": "6 tensors transposed"}, same=True)
def square(model):
    return transposed(state(model), (".q.", ".k.", ".o."))


@edit(
    "query, key and value fused",
    {"renamed": "", "fused": "parts of one tensor now: fused (blocks.#.q.weight, blocks.#.k.weight, "},
    same=True,
    back={"renamed": "", "split": ""},
)
def fused_together(model):
    return fused(state(model), QKV, ".attn.qkv.")


@edit("fused head by head", {"renamed": "", "fused": "parts of one tensor now"}, same=True)
def fused_heads(model):
    return fused_by_head(state(model), QKV, ".attn.qkv.", HEADS)


@edit("fused, transposed and renamed", {"renamed": "", "fused": "parts of one tensor now", "transposed": ""}, same=True)
def c_attn(model):
    return transposed(fused(renamed(state(model), GPT2), QKV, ".attn.c_attn."), ("c_attn",))


@edit(
    "split as other code has it", {"renamed": "", "split": ""}, same=True, start=encoder,
    back={"renamed": "", "fused": "3 each, one after the other: q + k + v"},
)  # fmt: skip
def separate(model):
    own = state(model)
    parts = {f"a.{c}.{n}": x for n in ("weight", "bias") for c, x in zip("qkv", own[f"self_attn.in_proj_{n}"].chunk(3))}
    return {n: x for n, x in own.items() if "in_proj" not in n} | parts


@edit(
    "Llama of transformers to Meta's",
    {"renamed": "", "rotary": "from halves to interleaved pairs of heads of 8 dimensions"},
    same=True,
    start=llama,
    back={"renamed": "", "rotary": "from interleaved pairs to halves of heads of 8 dimensions"},
)
def to_meta(model):
    return meta(state(model), 4, 2)


@edit("rotary layout of other code", {"rotary": "4 tensors permuted as rotary conversion does"}, start=llama)
def other_rotary(model):
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.copy_(to_pairs(layer.self_attn.q_proj.weight, 4))
        layer.self_attn.k_proj.weight.copy_(to_pairs(layer.self_attn.k_proj.weight, 2))


@edit("GPT-2 without Conv1D", {"transposed": "8 tensors transposed"}, same=True, start=gpt2)
def linear(model):
    return transposed(state(model), ("c_attn", "c_proj", "c_fc"))


@edit("GPT-2 without its head's names", {"renamed": ""}, same=True, start=gpt2)
def base(model):
    return {n.removeprefix("transformer."): t for n, t in state(model).items() if "lm_head" not in n}


@edit("ViT of transformers to timm's", {"renamed": "", "fused": "parts of one tensor now"}, same=True, start=vit)
def timm(model):
    own = state(model)
    roles = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
    some = [next(n for n in own if any(word in n for word in words)) for words in roles]
    parts = tuple(n.partition(".0.")[2].removesuffix("weight").removesuffix("bias") for n in some)
    words = {"vit.embeddings.cls_token": "cls_token", "vit.embeddings.position_embeddings": "pos_embed",
             "vit.embeddings.patch_embeddings.projection": "patch_embed.proj", "vit.layernorm": "norm",
             "classifier": "head", "layernorm_before": "norm1", "layernorm_after": "norm2"}  # fmt: skip
    return renamed(fused(own, parts, "attn.qkv."), words)


@edit("head untied", {"untied": "one tensor and are two now"}, same=True, start=tied, back={"tied": "are one now"})
def untied(model):
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


@edit(
    "layers dropped",
    {"layers dropped": "layer 2 of 4 dropped; 3 are left", "missing": ""},
    start=four_layers,
    back={"layers inserted": "layer 2 inserted", "new": ""},
)
def dropped(model):
    return stacked(model, [0, 1, 3])


@edit("a layer repeated", {"layers repeated": "layer 1 now stands at 1, 2"}, start=four_layers)
def repeated(model):
    return stacked(model, [0, 1, 1, 2, 3])


@edit("layers reordered", {"layers reordered": "0, 2, 1, 3"}, start=four_layers)
def reordered(model):
    return stacked(model, [0, 2, 1, 3])


@edit(
    "units cut out",
    {
        "narrowed": "narrower: units are gone",
        "units removed": "4 of 32 units of layer 0: units of up removed (1, 5, 8, 30)",
    },
    back={"widened": "wider: units were added", "units added": "(1, 5, 8, 30)"},
)
def cut(model):
    narrow, kept = decoder(hidden=28), [k for k in range(HIDDEN) if k not in (1, 5, 8, 30)]
    for name, x in model.state_dict().items():
        x = x[kept] if ".up." in name else x[:, kept] if "down.weight" in name else x
        narrow.state_dict()[name].copy_(x)
    return narrow


@edit(
    "vocabulary enlarged",
    {"vocabulary resized": "from 50 to 53", "resized": ""},
    back={"vocabulary resized": "53 to 50", "resized": ""},
)
def enlarged(model):
    larger = decoder(vocabulary=VOCABULARY + 3)
    for name, tensor in model.state_dict().items():
        larger.state_dict()[name][tuple(slice(n) for n in tensor.shape)] = tensor
    return larger


# edits that the symmetry explains


@edit("identity", {}, same=True)
def nothing(model):
    return None


@edit("heads 1 and 3 swapped", {"permuted": "heads 1 and 3 swapped (layer 1: groups of q, k, v)"}, same=True)
def heads(model):
    block, order = model.blocks[1], torch.tensor([0, 3, 2, 1])
    size = WIDTH // HEADS
    for layer in (block.q, block.k, block.v):
        layer.weight.copy_(layer.weight.unflatten(0, (HEADS, size))[order].flatten(0, 1))
        layer.bias.copy_(layer.bias.unflatten(0, (HEADS, size))[order].flatten())
    block.o.weight.copy_(block.o.weight.unflatten(1, (HEADS, size))[:, order].flatten(1))


@edit("units permuted", {"permuted": "units permuted (32 of 32 units moved)"}, same=True)
def hidden_units(model):
    for block in model.blocks:
        order = torch.randperm(HIDDEN)
        block.up.weight.copy_(block.up.weight[order])
        block.up.bias.copy_(block.up.bias[order])
        block.down.weight.copy_(block.down.weight[:, order])


@edit("unit 5 scaled by 2", {"scaled": "unit 5 scaled by 2, what reads them by the inverse"}, same=True)
def one_scale(model):
    block = model.blocks[0]
    block.up.weight[5] *= 2
    block.up.bias[5] *= 2
    block.down.weight[:, 5] /= 2


@edit("signs flipped", {"signs flipped": "signs of channel 3 flipped (residual stream from embed"}, same=True)
def signs(model):
    """Channel 3 of every second norm of a block."""
    for block in model.blocks:
        block.norm2.weight[3] *= -1
        block.norm2.bias[3] *= -1
        block.up.weight[:, 3] *= -1


@edit("gains folded", {"gains folded": "2 gains folded into the layers that read them"}, same=True)
def folded_gains(model):
    for block in model.blocks:
        gain = block.norm2.weight.clone()
        block.up.weight.mul_(gain)
        block.norm2.bias.div_(gain)
        block.norm2.weight.fill_(1)


# edits that leave something


@edit("cast to bfloat16", {"cast": "all 37 tensors cast to bfloat16"}, same=True)
def bfloat16(model):
    return model.bfloat16().float()


@edit("cast to float16", {"cast": "all 37 tensors cast to float16"}, same=True)
def float16(model):
    return model.half().float()


@edit("stored as bfloat16", {"stored": "all 37 tensors stored in another format, float32 to bfloat16"}, same=True)
def stored(model):
    return model.bfloat16()


@edit("update of rank 4", {"low rank": "update of rank 4 in 4 tensors", "frozen": ""})
def lora(model):
    for block in model.blocks:
        for layer in (block.q, block.v):
            layer.weight += 0.02 * torch.randn(WIDTH, 4) @ torch.randn(4, WIDTH)


@edit(
    "heads swapped, then an update of rank 4",
    {"permuted": "heads 1 and 3 swapped", "low rank": "update of rank 4 in 4 tensors", "frozen": ""},
)
def lora_on_swapped_heads(model):
    heads(model)
    lora(model)


@edit("head only", {"head only": "only tensors of the head changed: 1 of 2", "frozen": "", "noise": ""})
def head(model):
    model.head.weight.add_(0.1 * torch.randn_like(model.head.weight))


@edit("biases only", {"bias only": "only biases changed", "frozen": "", "changed": ""})
def biases(model):
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p += 0.1 * torch.randn_like(p)


@edit("pruned weights", {"pruned": "of the weights of 14 tensors set to zero", "frozen": ""})
def pruned(model):
    for p in matrices(model):
        p.mul_(p.abs() > p.abs().median())


@edit(
    "pruned units",
    {
        "units removed": "2 of 32 units of layer 0: units of up removed: their weights are zero (3, 9)",
        "pruned": "",
        "frozen": "",
    },
)
def pruned_units(model):
    block = model.blocks[0]
    for unit in (3, 9):
        block.up.weight[unit], block.up.bias[unit], block.down.weight[:, unit] = 0, 0, 0


@edit("block re-initialised", {"replaced": "2 re-initialised", "frozen": "0, 4"}, start=perceptron)
def fresh_block(model):
    for p in model[2].parameters():
        p.copy_(0.2 * torch.randn_like(p))


@edit("int8 round trip", {"quantised": "int8, one step for each row"})
def int8(model):
    for p in matrices(model):
        step = p.abs().amax(1, keepdim=True) / 127
        p.copy_((p / step).round() * step)


@edit("noise", {"noise": "independent normal entries of full rank"})
def noise(model):
    for p in model.parameters():
        p.add_(0.01 * p.std() * torch.randn_like(p))


@edit("special rows", {"rows": "2 of 50 rows of embed.weight (48, 49)", "frozen": ""})
def special_rows(model):
    model.embed.weight[[48, 49]] = torch.randn(2, WIDTH)


@edit("one tensor scaled", {"scaled tensors": "blocks.1.down.weight multiplied by 0.7", "frozen": ""})
def scaled_tensor(model):
    model.blocks[1].down.weight.mul_(0.7)


@edit(
    "statistics of batch norms",
    {"statistics only": "only statistics of batch norms changed", "frozen": "", "changed": ""},
    start=images,
)
def statistics(model):
    for norm in (model[1], model[4]):
        norm.running_mean += 0.1 * torch.randn(8)


@edit("batch norms rewritten", {"batch norms rewritten": "as the same affine maps: 1."}, same=True, start=images)
def rewritten(model):
    for norm in (model[1], model[4]):
        gain = norm.weight * (norm.running_var + norm.eps).rsqrt()
        norm.bias -= gain * norm.running_mean
        norm.weight.copy_(gain)
        norm.running_mean.zero_()
        norm.running_var.fill_(1 - norm.eps)


@edit(
    "labels and inputs renumbered",
    {"reordered": "columns of 0.weight; rows of 4.weight; rows of 4.bias", "frozen": ""},
    start=perceptron,
)
def renumbered(model):
    model[0].weight.copy_(model[0].weight.flip(1))
    model[4].weight.copy_(model[4].weight.roll(1, 0))
    model[4].bias.copy_(model[4].bias.roll(1))


@edit("ten entries edited", {"entries": "2.weight 10 of 4,096 entries: (", "frozen": ""}, start=perceptron)
def entries(model):
    model[2].weight.view(-1)[torch.randperm(64 * 64)[:10]] += 0.3


@edit("pruned, then moved", {"permuted": "", "pruned": "of the weights of 14 tensors set to zero", "frozen": ""})
def pruned_and_moved(model):
    pruned(model)
    hidden_units(model)
    heads(model)


@edit("other weights", {"unrelated": "nothing in common, units matched or not"})
def other_weights(model):
    return decoder(seed=5)


@edit(
    "biases that were zero trained",
    {"filled": "3 tensors changed only where all was zero", "bias only": ""},
    start=zeroed,
)
def grown(model):
    for layer in (model[0], model[2], model[4]):
        layer.bias.add_(0.005 * torch.randn_like(layer.bias))


@edit("four bits for 32 entries and back", {"quantised": "int4, one step for 32 entries"}, start=perceptron)
def int4(model):
    for p in matrices(model)[1:]:
        rows = p.reshape(-1, 32)
        step = rows.abs().amax(1, keepdim=True) / 7
        p.copy_(((rows / step).round() * step).reshape(p.shape))


@edit("float8 and back", {"quantised": "all"}, start=perceptron)
def float8(model):
    for p in model.parameters():
        p.copy_(p.to(torch.float8_e4m3fn).float())


@edit("scaled float8 and back", {"quantised": "float8_e4m3fn, one scale for each row"}, start=perceptron)
def scaled_float8(model):
    for p in matrices(model):
        scale = p.abs().amax(1, keepdim=True) / 448
        p.copy_((p / scale).to(torch.float8_e4m3fn).float() * scale)


@edit(
    "only a layer taken over",
    {"unrelated": "nothing in common", "kept": "1 tensor as before, number by number: 0.weight"},
    start=perceptron,
)
def taken_over(model):
    for p in (model[2].weight, model[4].weight, model[0].bias, model[2].bias, model[4].bias):
        nn.init.normal_(p)


@edit(
    "pruned, permuted and rescaled",
    {"permuted": "", "scaled": "", "pruned": "50.0% of the weights of 3 tensors set to zero"},
    start=perceptron,
)
def pruned_and_rescaled(model):
    pruned(model)
    sym = iw.symmetries(model, perceptron()[1])
    return sym.act(sym.random(seed=2, kinds=["permutation", "scale"]), model)


@edit("a stream centred", {"centred": "means over units subtracted from 2 tensors", "frozen": ""}, start=perceptron)
def centred(model):
    for p in (model[2].weight, model[2].bias):
        p.sub_(p.mean(0, keepdim=True))


@edit(
    "keys and values for each head",
    {"repeated": "4 tensors the same rows several times", "settings": "num_key_value_heads 2 to 4"},
    same=True,
    start=llama,
)
def expanded(model):
    other = type(model)(type(model.config)(**{**model.config.to_dict(), "num_key_value_heads": 4})).eval()
    own = state(model)
    for name, x in own.items():
        if "k_proj" in name or "v_proj" in name:
            own[name] = x.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    other.load_state_dict(own)
    return other


@edit(
    "key/value heads permuted",
    {"permuted": "key/value heads 0, 1, 2, 3 permuted in each of 2 layers"},
    same=True,
    start=lambda: llama(heads=8),
)
def permuted_groups(model):
    for layer in model.model.layers:
        attention = layer.self_attn
        for p in (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight, attention.o_proj.weight.T):
            p.copy_(p.unflatten(0, (4, -1))[[2, 3, 1, 0]].flatten(0, 1))


@edit(
    "biases of zeros",
    {
        "zero biases": "which count as none: 8 tensors (model.layers.0.self_attn.q_proj.bias",
        "settings": "attention_bias",
    },
    same=True,
    start=llama,
)
def zero_biases(model):
    other = type(model)(type(model.config)(**{**model.config.to_dict(), "attention_bias": True})).eval()
    for name, p in other.named_parameters():
        p.copy_(model.state_dict().get(name, torch.zeros_like(p)))
    return other


@edit("folded", {"folded": "gains, means or biases folded into other tensors"}, same=True)
def folded(model):
    return iw.fold(model, tokens()).model
