"""Networks of libraries and papers, each beside the same network in a few lines of our own."""

from typing import Any

import torch
import torch.nn.functional as F
from made import Made
from rewritten_networks import _IDS, _IMAGE, _LLAMA, Pair, Returned, _transformers, pair
from torch import Tensor, nn

_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
_VISION = {**_SMALL, "image_size": 32, "patch_size": 8}
_STAGES = [8, 12, 16, 24]


def heads(x: Tensor, count: int = 4) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(-2, -3)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, bias: Tensor | float = 0.0) -> Tensor:
    """Attention by hand, heads joined."""
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    return (logits.softmax(-1) @ v).transpose(-2, -3).flatten(-2)


def causal(t: int) -> Tensor:
    return torch.full((t, t), -torch.inf).triu(1)


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return gain * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def turned(x: Tensor, pairs: bool = False, dims: int | None = None, base: float = 10_000.0) -> Tensor:
    """Rotary positions on halves, or on neighbouring pairs, of the first dimensions."""
    d = dims or x.shape[-1]
    angle = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(0, d, 2) / d)
    c, s = angle.cos(), angle.sin()
    x, rest = x[..., :d], x[..., d:]
    if pairs:
        y, z = x.unflatten(-1, (-1, 2)).unbind(-1)
        x = torch.stack([y * c - z * s, z * c + y * s], -1).flatten(-2)
    else:
        y, z = x.chunk(2, -1)
        x = torch.cat([y * c - z * s, z * c + y * s], -1)
    return torch.cat([x, rest], -1)


# ---- transformers against own code


def _gpt(b: Made, ids: Tensor) -> Tensor:
    x = b.wte(ids) + b.wpe(torch.arange(ids.shape[1]))
    for n1, qkv, o, n2, up, down in zip(b.n1, b.qkv, b.o, b.n2, b.up, b.down):
        q, k, v = map(heads, qkv(n1(x)).split(16, -1))
        x = x + o(attended(q, k, v, bias=causal(ids.shape[1])))
        h = up(n2(x))
        x = x + down(0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3))))
    return b.norm(x) @ b.wte.weight.T


def _layers(*sizes: tuple[int, int], count: int = 2, **kwargs: Any) -> list[list[nn.Module]]:
    return [[nn.Linear(*size, **kwargs) for _ in range(count)] for size in sizes]


def _norms(width: int = 16, eps: float = 1e-5, count: int = 2) -> list[nn.Module]:
    return [nn.LayerNorm(width, eps) for _ in range(count)]


def _own_gpt() -> Made:
    qkv, o, up, down = _layers((16, 48), (16, 16), (16, 32), (32, 16))
    return Made(_gpt, wte=nn.Embedding(50, 16), wpe=nn.Embedding(20, 16), n1=_norms(), qkv=qkv, o=o, n2=_norms(), up=up,
                down=down, norm=nn.LayerNorm(16))  # fmt: skip


_transformers("GPT-2 with its head against own code", lambda t: Pair(
    t.GPT2LMHeadModel(t.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_inner=32, vocab_size=50, n_positions=20,
                                   use_cache=False)), _own_gpt(), _IDS,
))  # fmt: skip


def _own_llama(pairs: bool, base: float = 10_000.0, plus: float = 0.0, bias: bool = False) -> Made:
    """Llama with packed projections; ``plus`` is added to gains, ``pairs`` are as Meta wrote them."""

    def run(b: Made, ids: Tensor) -> Tensor:
        x = b.tokens(ids)
        for n1, qkv, o, n2, gates, down in zip(b.n1, b.qkv, b.o, b.n2, b.gates, b.down):
            q, k, v = qkv(rms(x, n1.weight, 1e-5)).split([16, 8, 8], -1)
            q, k, v = turned(heads(q), pairs, base=base), turned(heads(k, 2), pairs, base=base), heads(v, 2)
            k, v = (y.repeat_interleave(2, -3) for y in (k, v))
            x = x + o(attended(q, k, v, bias=causal(ids.shape[1])))
            up, gate = gates(rms(x, n2.weight, 1e-5)).chunk(2, -1)
            x = x + down(up * gate * gate.sigmoid())
        return b.head(rms(x, b.norm.weight, 1e-5))

    qkv, o, gates, down = _layers((16, 32), (16, 16), (16, 64), (32, 16), bias=False)
    if bias:
        (qkv,) = _layers((16, 32))
    gains = [[nn.RMSNorm(16) for _ in range(2)] for _ in range(2)]
    return Made(run, tokens=nn.Embedding(50, 16), n1=gains[0], qkv=qkv, o=o, n2=gains[1], gates=gates, down=down,
                norm=nn.RMSNorm(16), head=nn.Linear(16, 50, bias=False))  # fmt: skip


for _pairs in (False, True):
    _transformers(f"Llama against own code, rotary {'pairs' if _pairs else 'halves'}", lambda t, p=_pairs: Pair(
        t.LlamaForCausalLM(t.LlamaConfig(**_LLAMA)), _own_llama(p), _IDS
    ))  # fmt: skip
_transformers("Qwen2 against own code", lambda t: Pair(
    t.Qwen2ForCausalLM(t.Qwen2Config(**_LLAMA)), _own_llama(False, bias=True), _IDS
))  # fmt: skip


def _buckets(t: int) -> Tensor:
    """The relative positions of T5 in both directions, 32 buckets as far as 128."""
    far = torch.arange(t)[None] - torch.arange(t)[:, None]
    size = far.abs()
    large = 8 + (torch.log(size.clamp(min=1) / 8) / torch.log(torch.tensor(16.0)) * 8).long()
    return (far > 0) * 16 + torch.where(size < 8, size, large.clamp(max=15))


def _t5(b: Made, ids: Tensor) -> Tensor:
    x, bias = b.tokens(ids), b.far(_buckets(ids.shape[1])).permute(2, 0, 1)
    for n1, qkv, o, n2, up, down in zip(b.n1, b.qkv, b.o, b.n2, b.up, b.down):
        q, k, v = map(heads, qkv(rms(x, n1.weight, 1e-6)).chunk(3, -1))
        x = x + o(attended(q, k, v, 1.0, bias))
        x = x + down(up(rms(x, n2.weight, 1e-6)).relu())
    return rms(x, b.norm.weight, 1e-6)


def _own_t5() -> Made:
    qkv, o, up, down = _layers((16, 48), (16, 16), (16, 32), (32, 16), bias=False)
    gains = [[nn.RMSNorm(16) for _ in range(2)] for _ in range(2)]
    return Made(_t5, tokens=nn.Embedding(50, 16), far=nn.Embedding(32, 4), n1=gains[0], qkv=qkv, o=o, n2=gains[1],
                up=up, down=down, norm=nn.RMSNorm(16))  # fmt: skip


_transformers("encoder of T5 against own code", lambda t: Pair(
    t.T5EncoderModel(t.T5Config(d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, vocab_size=50)), _own_t5(), _IDS
))  # fmt: skip


def _own_blocks(activation: Any, eps: float, before: bool = True, count: int = 2, scaled: bool = False) -> Made:
    """Transformer blocks with packed projections; ``scaled`` with a gain on each branch."""

    def run(b: Made, x: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        for k in range(count):
            norm = b.n1[k] if before else nn.Identity()
            y = b.o[k](attended(*map(heads, b.qkv[k](norm(x)).chunk(3, -1)), bias=bias))
            x = x + (y * b.g1[k] if scaled else y)
            x = x if before else b.n1[k](x)
            y = b.down[k](activation(b.up[k](b.n2[k](x) if before else x)))
            x = x + (y * b.g2[k] if scaled else y)
            x = x if before else b.n2[k](x)
        return x

    qkv, o, up, down = _layers((16, 48), (16, 16), (16, 32), (32, 16), count=count)
    gains = {n: nn.ParameterList([torch.ones(16) for _ in range(count)]) for n in ("g1", "g2") if scaled}
    return Made(run, n1=_norms(eps=eps, count=count), n2=_norms(eps=eps, count=count), qkv=qkv, o=o, up=up, down=down,
                **gains)  # fmt: skip


def _own_vit(eps: float, scaled: bool = False) -> Made:
    """A vision transformer whose patches are cut by a reshape."""

    def run(b: Made, x: Tensor) -> Tensor:
        patches = x.unflatten(3, (4, 8)).unflatten(2, (4, 8)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x = torch.cat([b.first.expand(len(x), 1, 16), b.patch(patches)], 1) + b.places
        return b.norm(b.blocks(x))

    return Made(run, first=nn.Parameter(torch.randn(1, 1, 16)), patch=nn.Linear(192, 16), norm=nn.LayerNorm(16, eps),
                places=nn.Parameter(torch.randn(1, 17, 16)), blocks=_own_blocks(F.gelu, eps, scaled=scaled))  # fmt: skip  # noqa: E501


_transformers("ViT against own code", lambda t: Pair(
    Returned(t.ViTModel(t.ViTConfig(**_VISION), add_pooling_layer=False), "last_hidden_state"), _own_vit(1e-12), _IMAGE
))  # fmt: skip
_transformers("DINOv2 against own code", lambda t: Pair(
    Returned(t.Dinov2Model(t.Dinov2Config(**{**_VISION, "intermediate_size": 0}, mlp_ratio=2)), "last_hidden_state"),
    _own_vit(1e-6, scaled=True), _IMAGE,
))  # fmt: skip


def _own_clip() -> Made:
    def run(b: Made, ids: Tensor) -> Tensor:
        x = b.words(ids) + b.places[: ids.shape[1]]
        return b.norm(b.blocks(x, causal(ids.shape[1])))

    quick = lambda h: h * torch.sigmoid(1.702 * h)
    return Made(run, words=nn.Embedding(50, 16), places=nn.Parameter(torch.randn(20, 16)), norm=nn.LayerNorm(16),
                blocks=_own_blocks(quick, 1e-5))  # fmt: skip


_transformers("text tower of CLIP against own code", lambda t: Pair(
    Returned(t.CLIPTextModel(t.CLIPTextConfig(**_SMALL, vocab_size=50, max_position_embeddings=20)),
             "last_hidden_state"), _own_clip(), _IDS,
))  # fmt: skip


def _own_distil() -> Made:
    def run(b: Made, ids: Tensor) -> Tensor:
        return b.blocks(b.norm(b.words(ids) + b.places.weight[None, : ids.shape[1]]))

    return Made(run, words=nn.Embedding(50, 16), places=nn.Embedding(20, 16), norm=nn.LayerNorm(16, 1e-12),
                blocks=_own_blocks(F.gelu, 1e-12, before=False))  # fmt: skip


_transformers("DistilBERT against own code", lambda t: Pair(
    Returned(t.DistilBertModel(t.DistilBertConfig(dim=16, n_layers=2, n_heads=4, hidden_dim=32, vocab_size=50,
                                                  max_position_embeddings=20)), "last_hidden_state"),
    _own_distil(), _IDS,
))  # fmt: skip


def _own_neox() -> Made:
    """GPT-NeoX: attention and MLP side by side, rotary on a quarter of each head; projections in one matrix each."""

    def run(b: Made, ids: Tensor) -> Tensor:
        x = b.tokens(ids)
        for k in range(2):
            q, k_, v = (heads(f(b.n1[k](x)), 2) for f in (b.q[k], b.k[k], b.v[k]))
            y = b.o[k](attended(turned(q, dims=4), turned(k_, dims=4), v, bias=causal(ids.shape[1])))
            x = x + y + b.down[k](F.gelu(b.up[k](b.n2[k](x))))
        return b.norm(x)

    q, k, v, o, up, down = _layers((16, 16), (16, 16), (16, 16), (16, 16), (16, 32), (32, 16))
    return Made(run, tokens=nn.Embedding(50, 16), n1=_norms(), n2=_norms(), q=q, k=k, v=v, o=o, up=up, down=down,
                norm=nn.LayerNorm(16))  # fmt: skip


_transformers("GPT-NeoX against own code", lambda t: Pair(
    Returned(t.GPTNeoXModel(t.GPTNeoXConfig(**{**_SMALL, "num_attention_heads": 2}, vocab_size=50, rotary_pct=0.5)),
             "last_hidden_state"), _own_neox(), _IDS,
))  # fmt: skip


def _own_opt() -> Made:
    def run(b: Made, ids: Tensor) -> Tensor:
        x = b.words(ids) + b.places[2 : 2 + ids.shape[1]]
        return b.norm(b.blocks(x, causal(ids.shape[1])))

    return Made(run, words=nn.Embedding(50, 16), places=nn.Parameter(torch.randn(22, 16)), norm=nn.LayerNorm(16),
                blocks=_own_blocks(F.relu, 1e-5))  # fmt: skip


_transformers("OPT against own code", lambda t: Pair(
    Returned(t.OPTModel(t.OPTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=32,
                                    vocab_size=50, max_position_embeddings=20, word_embed_proj_dim=16)),
             "last_hidden_state"), _own_opt(), _IDS,
))  # fmt: skip


def _own_convnext() -> Made:
    """ConvNeXt with maps over channels written as 1x1 convolutions, and layer norms by hand."""

    def norm(x: Tensor, n: nn.LayerNorm, eps: float = 1e-6) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        x = x / (x.pow(2).mean(1, keepdim=True) + eps).sqrt()
        return x * n.weight[:, None, None] + n.bias[:, None, None]

    def run(b: Made, x: Tensor) -> Tensor:
        for k in range(4):
            x = norm(b.shrink[k](x), b.norms[k]) if k == 0 else b.shrink[k](norm(x, b.norms[k]))
            y = b.up[k](norm(b.deep[k](x), b.inner[k]))
            x = x + b.gain[k][:, None, None] * b.down[k](F.gelu(y))
        x = x.mean((2, 3))
        return b.head(b.last(x))

    sizes = [3, *_STAGES]
    shrink = [nn.Conv2d(m, n, 2 + 2 * (m == 3), 2 + 2 * (m == 3)) for m, n in zip(sizes, _STAGES)]
    return Made(run, shrink=shrink, norms=[nn.LayerNorm(n) for n in [8, *_STAGES[:3]]],
                deep=[nn.Conv2d(n, n, 7, padding=3, groups=n) for n in _STAGES],
                inner=[nn.LayerNorm(n) for n in _STAGES], up=[nn.Conv2d(n, 4 * n, 1) for n in _STAGES],
                down=[nn.Conv2d(4 * n, n, 1) for n in _STAGES], last=nn.LayerNorm(24, 1e-6),
                gain=nn.ParameterList([torch.ones(n) for n in _STAGES]), head=nn.Linear(24, 5))  # fmt: skip


_transformers("ConvNeXt against own code", lambda t: Pair(
    t.ConvNextForImageClassification(t.ConvNextConfig(hidden_sizes=_STAGES, depths=[1, 1, 1, 1], num_labels=5,
                                                      layer_norm_eps=1e-6)),
    _own_convnext(), torch.randn(2, 3, 64, 64),
))  # fmt: skip


class Conv(nn.Module):
    """A convolution and a batch norm, as functions of bare parameters."""

    def __init__(self, m: int, n: int, k: int = 3, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.w, self.stride, self.groups = nn.Parameter(torch.randn(n, m // groups, k, k) / 5), stride, groups
        self.gain, self.shift = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("var", torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.w, None, self.stride, self.w.shape[-1] // 2, 1, self.groups)
        x = (x - self.mean[:, None, None]) / torch.sqrt(self.var[:, None, None] + 1e-5)
        return x * self.gain[:, None, None] + self.shift[:, None, None]


def _own_resnet(widths: list[int], deep: bool) -> Made:
    """ResNet of basic or bottleneck blocks, two stages of one block each, and a shortcut where the shape changes."""

    def run(b: Made, x: Tensor) -> Tensor:
        x = F.max_pool2d(b.stem(x).relu(), 3, 2, 1)
        for block in b.blocks:
            y = x
            for k, part in enumerate(block[:-1]):
                y = part(y.relu() if k else y)
            x = (block[-1](x) + y).relu()
        return F.linear(x.mean((-1, -2)), b.head.weight, b.head.bias)

    blocks, m = [], 8
    for k, n in enumerate(widths):
        stride = 1 + (k > 0)
        inner = [Conv(m, n // 4, 1), Conv(n // 4, n // 4, 3, stride), Conv(n // 4, n, 1)]
        parts = inner if deep else [Conv(m, n, 3, stride), Conv(n, n)]
        blocks.append(nn.ModuleList([*parts, nn.Identity() if m == n and stride == 1 else Conv(m, n, 1, stride)]))
        m = n
    return Made(run, stem=Conv(3, 8, 7, 2), blocks=blocks, head=nn.Linear(m, 5))


for _deep in (False, True):
    _transformers(f"ResNet of {'bottlenecks' if _deep else 'basic blocks'} against own code", lambda t, d=_deep: Pair(
        t.ResNetForImageClassification(t.ResNetConfig(
            embedding_size=8, layer_type="bottleneck" if d else "basic", hidden_sizes=[16, 32], depths=[1, 1],
            num_labels=5)), _own_resnet([16, 32], d), torch.randn(2, 3, 32, 32),
    ))  # fmt: skip


def _own_regnet() -> Made:
    """RegNet with squeeze and excitation by linear maps."""

    def run(b: Made, x: Tensor) -> Tensor:
        x = b.stem(x).relu()
        for first, second, down, up, last, short in b.blocks:
            y = second(first(x).relu()).relu()
            y = y * up(down(y.mean((2, 3))).relu()).sigmoid()[..., None, None]
            x = (last(y) + short(x)).relu()
        return b.head(x.mean((2, 3)))

    blocks = [nn.ModuleList([Conv(m, n, 1), Conv(n, n, 3, 2, n // 8), nn.Linear(n, s), nn.Linear(s, n), Conv(n, n, 1),
                             Conv(m, n, 1, 2)]) for m, n, s in ((8, 16, 2), (16, 24, 4))]  # fmt: skip
    return Made(run, stem=Conv(3, 8, 3, 2), blocks=blocks, head=nn.Linear(24, 5))


_transformers("RegNet against own code", lambda t: Pair(
    t.RegNetForImageClassification(t.RegNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[1, 1],
                                                  groups_width=8, num_labels=5)),
    _own_regnet(), torch.randn(2, 3, 32, 32),
))  # fmt: skip


# ---- torch, and papers written twice


@pair("VGG against functions")
def _() -> Pair:
    def run(b: Made, x: Tensor) -> Tensor:
        for k, conv in enumerate(b.convs):
            x = torch.clamp(conv(x), min=0)
            x = F.max_pool2d(x, 2) if k % 2 else x
        return b.head(x.flatten(1))

    m, c = nn.Sequential, lambda i, o: nn.Conv2d(i, o, 3, padding=1)
    layers = c(3, 4), nn.ReLU(), c(4, 4), nn.ReLU(), nn.MaxPool2d(2, 2), c(4, 8), nn.ReLU(), c(8, 8), nn.ReLU()
    own = Made(run, convs=[c(3, 4), c(4, 4), c(4, 8), c(8, 8)], head=nn.Linear(32, 5))
    return Pair(m(m(*layers, nn.MaxPool2d(2, 2)), nn.Dropout(), nn.Flatten(), nn.Linear(32, 5)), own,
                torch.randn(2, 3, 8, 8))  # fmt: skip


@pair("DenseNet, one tensor that grows against a list")
def _() -> Pair:
    def grown(b: Made, x: Tensor) -> Tensor:
        for norm, conv in zip(b.norms, b.convs):
            x = torch.cat([x, conv(norm(x).relu())], 1)
        return b.last(x)

    def listed(b: Made, x: Tensor) -> Tensor:
        found = [x]
        for norm, conv in zip(b.norms, b.convs):
            found.append(conv(F.relu(norm(torch.cat(found, 1)))))
        return b.last(torch.cat(found, 1))

    made = lambda run: Made(run, norms=[nn.BatchNorm2d(4 + 3 * k) for k in range(3)], last=nn.BatchNorm2d(13),
                            convs=[nn.Conv2d(4 + 3 * k, 3, 3, padding=1) for k in range(3)])  # fmt: skip
    return Pair(made(grown), made(listed), torch.randn(2, 4, 6, 6))


def _inverted(b: Made, x: Tensor) -> Tensor:
    for up, deep, down in zip(b.up, b.deep, b.down):
        y = down(deep(up(x).clamp(0, 6)).clamp(0, 6))
        x = x + y if x.shape == y.shape else y
    return x


@pair("MobileNetV2 against functions")
def _() -> Pair:
    class Block(nn.Sequential):
        def __init__(self, m: int, n: int, stride: int) -> None:
            conv = lambda i, o, k=1, s=1, g=1: nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False)
            super().__init__(conv(m, 4 * m), nn.BatchNorm2d(4 * m), nn.ReLU6(), conv(4 * m, 4 * m, 3, stride, 4 * m),
                             nn.BatchNorm2d(4 * m), nn.ReLU6(), conv(4 * m, n), nn.BatchNorm2d(n))  # fmt: skip
            self.short = m == n and stride == 1

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).add(x) if self.short else super().forward(x)

    shapes = (4, 6, 2), (6, 6, 1), (6, 8, 2)
    own = Made(_inverted, up=[Conv(m, 4 * m, 1) for m, _, _ in shapes],
               deep=[Conv(4 * m, 4 * m, 3, s, 4 * m) for m, _, s in shapes],
               down=[Conv(4 * m, n, 1) for m, n, _ in shapes])  # fmt: skip
    return Pair(nn.Sequential(*(Block(*s) for s in shapes)), own, torch.randn(2, 4, 8, 8))


@pair("squeeze and excitation, convolutions against linear maps")
def _() -> Pair:
    def image(b: Made, x: Tensor) -> Tensor:
        x = F.silu(b.conv(x))
        return x * torch.sigmoid(b.up(F.silu(b.down(F.adaptive_avg_pool2d(x, 1)))))

    def vector(b: Made, x: Tensor) -> Tensor:
        x = b.conv(x)
        x = x * x.sigmoid()
        y = b.down(x.flatten(2).mean(2))
        return torch.einsum("bchw,bc->bchw", x, F.sigmoid(b.up(y * y.sigmoid())))

    made = lambda run, f: Made(run, conv=nn.Conv2d(3, 8, 3), down=f(8, 2), up=f(2, 8))
    return Pair(made(image, lambda m, n: nn.Conv2d(m, n, 1)), made(vector, nn.Linear), torch.randn(2, 3, 8, 8))


@pair("MLP-Mixer, linear maps against einsum")
def _() -> Pair:
    def mixed(b: Made, x: Tensor) -> Tensor:
        x = x + b.t2(F.gelu(b.t1(b.n1(x).mT))).mT
        return x + b.c2(F.gelu(b.c1(b.n2(x))))

    def summed(b: Made, x: Tensor) -> Tensor:
        h = F.gelu(torch.einsum("btc,ts->bsc", b.n1(x), b.t1) + b.b1[:, None])
        x = torch.einsum("bsc,st->btc", h, b.t2) + b.b2[:, None] + x
        h = F.gelu(torch.einsum("btc,cd->btd", b.n2(x), b.c1) + b.b3)
        return torch.einsum("btd,dc->btc", h, b.c2) + b.b4 + x

    p = lambda *shape: nn.Parameter(torch.randn(shape) / 3)
    a = Made(mixed, n1=nn.LayerNorm(8), t1=nn.Linear(5, 7), t2=nn.Linear(7, 5), n2=nn.LayerNorm(8), c1=nn.Linear(8, 9),
             c2=nn.Linear(9, 8))  # fmt: skip
    b = Made(summed, n1=nn.LayerNorm(8), n2=nn.LayerNorm(8), t1=p(5, 7), b1=p(7), t2=p(7, 5), b2=p(5), c1=p(8, 9),
             b3=p(9), c2=p(9, 8), b4=p(8))  # fmt: skip
    return Pair(a, b, torch.randn(2, 5, 8))


@pair("attention with heads in its tensors, as Flax has it")
def _() -> Pair:
    def dense(b: Made, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btc,chd->bthd", x, w) + c for w, c in ((b.q, b.bq), (b.k, b.bk), (b.v, b.bv)))
        w = torch.einsum("bqhd,bkhd->bhqk", q / 2, k).softmax(-1)
        return torch.einsum("bqhd,hdc->bqc", torch.einsum("bhqk,bkhd->bqhd", w, v), b.o) + b.bo

    p = lambda *shape: nn.Parameter(torch.randn(shape) / 3)
    own = Made(dense, **{n: p(16, 4, 4) for n in "qkv"}, **{f"b{n}": p(4, 4) for n in "qkv"}, o=p(4, 4, 16), bo=p(16))
    return Pair(Made(lambda b, x: b.inner(x, x, x)[0], inner=nn.MultiheadAttention(16, 4, batch_first=True)), own,
                torch.randn(2, 5, 16))  # fmt: skip


@pair("encoder layer against own code")
def _() -> Pair:
    return Pair(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), _own_blocks(F.relu, 1e-5, False, 1),
                torch.randn(2, 5, 16))  # fmt: skip


@pair("decoder layer against own code")
def _() -> Pair:
    def run(b: Made, x: Tensor, there: Tensor) -> Tensor:
        x = b.n1(x + b.o(attended(*map(heads, b.qkv(x).chunk(3, -1)))))
        k, v = map(heads, b.kv(there).chunk(2, -1))
        x = b.n2(x + b.out(attended(heads(b.q(x)), k, v)))
        return b.n3(x + b.down(b.up(x).relu()))

    maps = {"qkv": (16, 48), "o": (16, 16), "q": (16, 16), "kv": (16, 32), "out": (16, 16), "up": (16, 32),
            "down": (32, 16)}  # fmt: skip
    own = Made(run, **{n: nn.Linear(*s) for n, s in maps.items()}, **{f"n{k}": nn.LayerNorm(16) for k in (1, 2, 3)})
    return Pair(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), own,
                (torch.randn(2, 5, 16), torch.randn(2, 6, 16)))  # fmt: skip


@pair("U-Net in two codes")
def _() -> Pair:
    def one(b: Made, x: Tensor) -> Tensor:
        first = b.first(x).relu()
        low = b.low(F.max_pool2d(first, 2)).relu()
        return b.last(torch.cat([first, b.up(low)], 1))

    def other(b: Made, x: Tensor) -> Tensor:
        stack = [F.relu(b.first(x))]
        x = F.relu(b.low(b.pool(stack[-1])))
        return b.last(torch.concat((stack.pop(), b.up(x)), dim=-3))

    made = lambda run: Made(run, first=nn.Conv2d(3, 4, 3, padding=1), low=nn.Conv2d(4, 6, 3, padding=1),
                            up=nn.ConvTranspose2d(6, 4, 2, 2), last=nn.Conv2d(8, 2, 1), pool=nn.MaxPool2d(2, 2))  # fmt: skip  # noqa: E501
    return Pair(made(one), made(other), torch.randn(2, 3, 8, 8))


@pair("group norm by hand")
def _() -> Pair:
    def run(b: Made, x: Tensor) -> Tensor:
        x = b.conv(x)
        y = x.reshape(len(x), 2, -1)
        var, mean = torch.var_mean(y, -1, keepdim=True, correction=0)
        y = ((y - mean) * (var + 1e-5).rsqrt()).view_as(x)
        return y * b.gain.view(1, -1, 1, 1) + b.shift.view(1, -1, 1, 1)

    own = Made(run, conv=nn.Conv2d(3, 8, 3), gain=nn.Parameter(torch.ones(8)), shift=nn.Parameter(torch.zeros(8)))
    return Pair(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), own, torch.randn(2, 3, 6, 6))


# ---- one function by operations that no normal form joins


def _beside() -> Pair:
    def beside(b: Made, x: Tensor) -> Tensor:
        return b.last(torch.cat([f(y) for f, y in zip(b.parts, x.chunk(2, 1))], 1).relu())

    own = Made(beside, parts=[nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)], last=nn.Conv2d(8, 2, 1))
    return Pair(nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1)), own,
                torch.randn(2, 6, 6, 6))  # fmt: skip


def _branches() -> Pair:
    def one(b: Made, x: Tensor) -> Tensor:
        return torch.cat([b.p(x).relu(), b.q(x).relu(), b.r(x).tanh()], -1) @ b.w

    def other(b: Made, x: Tensor) -> Tensor:
        return b.r(x).tanh() @ b.w[12:] + b.q(x).relu() @ b.w[6:12] + b.p(x).relu() @ b.w[:6]

    made = lambda run: Made(run, p=nn.Linear(4, 6), q=nn.Linear(4, 6), r=nn.Linear(4, 6),
                            w=nn.Parameter(torch.randn(18, 3)))  # fmt: skip
    return Pair(made(one), made(other), torch.randn(5, 4))


UNJOINED = {
    "a grouped convolution against convolutions side by side": _beside,
    "joined branches against sums": _branches,
}
