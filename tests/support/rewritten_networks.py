"""Networks in several forms of code: pairs of one function, and one function rewritten at random."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Pair:
    """Two models of one function, and what they are called with."""

    a: nn.Module
    b: nn.Module
    x: Any
    xb: Any = None

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        for model in (self.a.eval(), self.b.eval()):
            for tensor in model.state_dict().values():
                if tensor.is_floating_point() and tensor.ndim == 1:
                    tensor += 0.1 * torch.rand_like(tensor)

    @property
    def x_of_b(self) -> Any:
        return self.x if self.xb is None else self.xb


PAIRS: dict[str, Callable[[], Pair]] = {}


def pair(name: str):
    def enter(make: Callable[[], Pair]):
        PAIRS[name] = make
        return make

    return enter


# ---- one function, rewritten


class Mlp(nn.Module):
    """A block of two layers with norm and residual, in one of several spellings."""

    def __init__(self, norm="before", residual=True, activation="gelu", width=6, swapped=False, tied=None, packed=False,
                 turned=False, fused=True, reordered=False, by_hand=False):  # fmt: skip
        super().__init__()
        self.wide, self.norm, self.residual, self.activation, self.swapped = width, norm, residual, activation, swapped
        self.packed, self.turned, self.reordered, self.by_hand = packed, turned, reordered, by_hand
        self.ln = nn.LayerNorm(8)
        if packed:
            self.up = nn.Linear(8, 2 * width)
        else:
            self.gate, self.value = nn.Linear(8, width), nn.Linear(8, width)
        self.down = nn.Parameter(torch.randn(width, 8) / 3 if turned else torch.randn(8, width) / 3)
        self.last = nn.Linear(8, 8)
        if tied:
            self.last.weight = nn.Parameter(torch.randn(8, 8))
            self.extra = nn.Linear(8, 8)
            self.extra.weight = self.last.weight
        elif tied is False:
            self.extra = nn.Linear(8, 8)

    def _norm(self, x: Tensor) -> Tensor:
        if not self.by_hand:
            return self.ln(x)
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + self.ln.eps) * self.ln.weight + self.ln.bias

    def _act(self, x: Tensor) -> Tensor:
        if self.by_hand and self.activation == "relu":
            return x.clamp(min=0)
        if self.by_hand and self.activation == "gelu":
            return 0.5 * x * (1 + torch.erf(x / 2**0.5))
        if self.by_hand and self.activation == "silu":
            return x * torch.sigmoid(x)
        return torch.tanh(x) if self.activation == "tanh" else getattr(F, self.activation)(x)

    def forward(self, x: Tensor) -> Tensor:
        h = self._norm(x) if self.norm == "before" else x
        gate, value = self.up(h).chunk(2, -1) if self.packed else (self.gate(h), self.value(h))
        if self.swapped:
            gate, value = value.tanh(), gate
        else:
            value = value.tanh()
        h = value * self._act(gate) if self.reordered else self._act(gate) * value
        h = h @ self.down if self.turned else F.linear(h, self.down)
        if self.residual:
            h = h + x if self.reordered else x + h
        h = self._norm(h) if self.norm == "after" else h
        return self.extra(self.last(h).relu()) if hasattr(self, "extra") else self.last(h)


class Attention(nn.Module):
    """Attention in one of several spellings."""

    def __init__(self, heads=4, scale=None, causal=False, packed=False, turned=False, fused=True, reordered=False,
                 by_hand=False):  # fmt: skip
        super().__init__()
        self.wide, self.heads, self.scale, self.causal = 8, heads, scale or (8 / heads) ** -0.5, causal
        self.packed, self.turned, self.fused, self.reordered = packed, turned, fused, reordered
        if packed:
            self.qkv = nn.Linear(8, 24)
        else:
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.o = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        if self.packed and self.reordered:
            q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            parts = self.qkv(x).split(c, -1) if self.packed else (self.q(x), self.k(x), self.v(x))
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in parts)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        else:
            scores = (q * self.scale) @ k.mT if self.reordered else (q @ k.mT) * self.scale
            if self.causal:
                scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
            y = torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v)
        y = y.transpose(1, 2).flatten(2)
        return x + (y @ self.o if self.turned else F.linear(y, self.o))


class Wrapped(nn.Module):
    """Another module, called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        return self.model(*args)


def rewritten(kind: str, wrapped: bool = False, **settings: Any) -> nn.Module:
    """A block of a kind in one of its forms."""
    model = {"mlp": Mlp, "attention": Attention}[kind](**settings)
    return (Wrapped(model) if wrapped else model).eval()


@pair("sequential against named")
def _() -> Pair:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleDict({"first": nn.Linear(6, 9), "second": nn.Linear(9, 3)})

        def forward(self, x: Tensor) -> Tensor:
            return self.inner["second"](F.gelu(F.dropout(self.inner["first"](x), 0.1, self.training)))

    return Pair(nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Identity(), nn.Linear(9, 3)), Named(), torch.randn(4, 6))


@pair("conv1x1 against linear")
def _() -> Pair:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 9), nn.Linear(9, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x.flatten(2).mT).relu()).mT.unflatten(2, x.shape[2:])

    return Pair(nn.Sequential(nn.Conv2d(4, 9, 1), nn.ReLU(), nn.Conv2d(9, 5, 1)), Tokens(), torch.randn(2, 4, 3, 5))


pair("packed attention by hand")(
    lambda: Pair(
        rewritten("attention"), rewritten("attention", packed=True, fused=False, turned=True), torch.randn(3, 5, 8)
    )
)


@pair("attention packed by heads")
def _() -> Pair:
    ways = {"packed": True, "reordered": True, "fused": False, "wrapped": True}
    return Pair(rewritten("attention", causal=True), rewritten("attention", causal=True, **ways), torch.randn(3, 5, 8))


pair("data parallel")(
    lambda: Pair(rewritten("mlp"), nn.DataParallel(rewritten("mlp", packed=True)), torch.randn(3, 5, 8))
)
pair("torch.compile")(
    lambda: Pair(torch.compile(rewritten("mlp")), rewritten("mlp", by_hand=True), torch.randn(3, 5, 8))
)


@pair("encoder layer against its stack")
def _() -> Pair:
    layer = lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return Pair(layer(), nn.TransformerEncoder(layer(), 1, enable_nested_tensor=False), torch.randn(2, 5, 16))


@pair("multi-head attention against own")
def _() -> Pair:
    class Own(Attention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) - x + self.bias

        def __init__(self) -> None:
            super().__init__(fused=False)
            self.bias = nn.Parameter(torch.zeros(8))

    class Torch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x, x, x, need_weights=False)[0] - x

    return Pair(Torch(), Own(), torch.randn(2, 5, 8))


@pair("batch norm net against functions")
def _() -> Pair:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Parameter(torch.randn(6, 3, 3, 3) / 5)
            self.n = nn.BatchNorm2d(6)
            self.f = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            n = self.n
            h = F.conv2d(x, self.c, padding=1)
            h = F.batch_norm(h, n.running_mean, n.running_var, n.weight, n.bias, False, 0.1, n.eps)
            return self.f(F.threshold(h, 0, 0).mean((2, 3)))

    layers = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    return Pair(nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, 4)), Functional(), torch.randn(2, 3, 8, 8))


@pair("patches by convolution and by reshape")
def _() -> Pair:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(48, 7)

        def forward(self, x: Tensor) -> Tensor:
            b, c, h, w = x.shape
            x = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
            return self.f(x.reshape(b, -1, 48)).tanh()

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Conv2d(3, 7, 4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.p(x).flatten(2).mT.tanh()

    return Pair(Convolution(), Patches(), torch.randn(2, 3, 8, 12))


class Nano(nn.Module):
    """A small GPT; ``by_hand`` with a mask in a buffer, packed weights and the tanh-GELU written out."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.tokens, self.places = nn.Embedding(30, 16), nn.Embedding(12, 16)
        self.n1, self.n2, self.n3 = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        if by_hand:
            self.attn, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.register_buffer("mask", torch.ones(12, 12).tril().view(1, 1, 12, 12))
        else:
            self.attn = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
            self.out = nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(t))
        h = self.n1(x)
        parts = self.attn(h).split(16, 2) if self.by_hand else [f(h) for f in self.attn]
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in parts)
        if self.by_hand:
            w = (q @ k.mT / 2).masked_fill(self.mask[:, :, :t, :t] == 0, -torch.inf)
            y = w.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(h.shape))
        h = self.up(self.n2(x))
        if self.by_hand:
            h = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
        else:
            h = F.gelu(h, approximate="tanh")
        return self.head(self.n3(x + self.down(h)))


class Rotary(nn.Module):
    """Attention with rotary positions, their dimensions as ``"halves"`` or as ``"pairs"``."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.tokens = order, nn.Embedding(30, 16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def turned(self, x: Tensor) -> Tensor:
        t, d = x.shape[-2:]
        angle = torch.arange(t)[:, None] * 10_000 ** (-torch.arange(0, d, 2) / d)
        c, s = angle.cos(), angle.sin()
        if self.order == "pairs":
            y, z = x[..., ::2], x[..., 1::2]
            return torch.stack([y * c - z * s, y * s + z * c], -1).flatten(-2)
        y, z = x.chunk(2, -1)
        return x * torch.cat([c, c], -1) + torch.cat([-z, y], -1) * torch.cat([s, s], -1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        q, k, v = (f(x).view(*ids.shape, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


pair("rotary halves against pairs")(lambda: Pair(Rotary("halves"), Rotary("pairs"), torch.randint(0, 30, (2, 7))))
pair("gpt against fused")(lambda: Pair(Nano(False), Nano(True), torch.randint(0, 30, (2, 7))))
pair("gated mlp packed")(
    lambda: Pair(rewritten("mlp", packed=True, by_hand=True), rewritten("mlp", reordered=True), torch.randn(3, 5, 8))
)
pair("recurrent cells against the layer")(lambda: Pair(nn.LSTM(4, 5), Wrapped(nn.LSTM(4, 5)), torch.randn(3, 2, 4)))


# ---- code bases of others, where they are installed


def _between(libraries: str, name: str, make: Callable[..., Pair]) -> None:
    """A pair of models from two code bases; ``make`` gets the modules of each."""
    try:
        modules = [import_module(library) for library in libraries.split()]
    except (ImportError, RuntimeError):
        return
    PAIRS[name] = lambda: make(*modules)


_transformers = partial(_between, "transformers")
_peers = partial(_between, "timm transformers")


_IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
_IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 50}
_LLAMA = dict(**_BERT, num_key_value_heads=2, rms_norm_eps=1e-5, pad_token_id=0)
_VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 20}


def _eager(cls: Any, config: Any) -> nn.Module:
    return cls._from_config(config, attn_implementation="eager")


_transformers(
    "GPT-2 eager against fused",
    lambda t: Pair(t.GPT2Model(t.GPT2Config(**_GPT)), _eager(t.GPT2Model, t.GPT2Config(**_GPT)), _IDS),
)
_transformers(
    "Llama eager against fused",
    lambda t: Pair(t.LlamaModel(t.LlamaConfig(**_LLAMA)), _eager(t.LlamaModel, t.LlamaConfig(**_LLAMA)), _IDS),
)
_transformers(
    "Llama against Mistral",
    lambda t: Pair(t.LlamaForCausalLM(t.LlamaConfig(**_LLAMA)), t.MistralForCausalLM(t.MistralConfig(**_LLAMA)), _IDS),
)
_transformers(
    "Llama against Phi-3, packed",
    lambda t: Pair(t.LlamaForCausalLM(t.LlamaConfig(**_LLAMA)), t.Phi3ForCausalLM(t.Phi3Config(**_LLAMA)), _IDS),
)
_transformers(
    "BERT against Electra",
    lambda t: Pair(
        t.BertModel(t.BertConfig(**_BERT), add_pooling_layer=False),
        t.ElectraModel(t.ElectraConfig(**_BERT, embedding_size=16)),
        _IDS,
    ),
)
_transformers(
    "T5 encoder eager against fused",
    lambda t: Pair(
        *(
            f(t.T5EncoderModel, t.T5Config(d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, vocab_size=50))
            for f in (lambda c, k: c(k), _eager)
        ),
        _IDS,
    ),
)
_transformers(
    "ViT eager against fused",
    lambda t: Pair(
        t.ViTForImageClassification(t.ViTConfig(**_VIT)),
        _eager(t.ViTForImageClassification, t.ViTConfig(**_VIT)),
        _IMAGE,
    ),
)


def _image(name: str, theirs: str, side: int = 64, **settings: Any) -> None:
    def made(v: Any, m: Any) -> Pair:
        own = getattr(v.models, name)(weights=None, **settings)
        return Pair(own, m.create_model(theirs), torch.randn(1, 3, side, side))

    _between("torchvision timm", f"{name} of torchvision and timm", made)


for _name, _theirs in {
    "resnet18": "resnet18", "resnet50": "resnet50", "densenet121": "densenet121", "mobilenet_v2": "mobilenetv2_100",
    "efficientnet_b0": "efficientnet_b0", "convnext_tiny": "convnext_tiny", "mnasnet1_0": "mnasnet_100",
    "resnext50_32x4d": "resnext50_32x4d", "wide_resnet50_2": "wide_resnet50_2", "regnet_y_400mf": "regnety_004",
}.items():  # fmt: skip
    _image(_name, _theirs)
_image("vit_b_16", "vit_base_patch16_224", 224)
_image("vgg11_bn", "vgg11_bn", 224)
_image("inception_v3", "inception_v3", 299, aux_logits=False, init_weights=False)


class Returned(nn.Module):
    """One field of what a model of transformers returns."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[self.field]


_SIZES = dict(**{**_VIT, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 96}, num_labels=5)
_STAGES = [8, 16, 24, 32]
_peers(
    "ViT of timm and transformers",
    lambda m, t: Pair(
        m.models.vision_transformer.VisionTransformer(32, 8, embed_dim=24, depth=2, num_heads=3, num_classes=5),
        t.ViTForImageClassification(t.ViTConfig(**_SIZES, layer_norm_eps=1e-6)),
        _IMAGE,
    ),
)
_peers(
    "ConvNeXt of timm and transformers",
    lambda m, t: Pair(
        m.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=_STAGES, num_classes=5),
        t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=_STAGES, depths=[1, 1, 1, 1], num_labels=5, layer_norm_eps=1e-6)
        ),
        torch.randn(2, 3, 64, 64),
    ),
)
_peers(
    "MobileNetV2 of timm and transformers",
    lambda m, t: Pair(
        m.create_model("mobilenetv2_100", num_classes=5),
        t.MobileNetV2ForImageClassification(
            t.MobileNetV2Config(num_labels=5, hidden_act="relu6", tf_padding=False, layer_norm_eps=1e-5)
        ),
        torch.randn(1, 3, 64, 64),
    ),
)
_peers(
    "ResNet of timm and transformers",
    lambda m, t: Pair(
        m.create_model("resnet18", num_classes=5),
        t.ResNetForImageClassification(
            t.ResNetConfig(layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], num_labels=5)
        ),
        torch.randn(1, 3, 64, 64),
    ),
)
_between(
    "transformers open_clip",
    "image tower of open_clip and transformers",
    lambda t, o: Pair(
        o.transformer.VisionTransformer(32, 8, 24, 2, 3, 4, output_dim=10),
        Returned(
            t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**_SIZES, projection_dim=10, hidden_act="gelu")),
            "image_embeds",
        ),
        _IMAGE,
    ),
)


_SWIN = {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 3}
_WINDOWS = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
_TOKENS = {"depth": 2, "embed_dim": 24, "num_heads": 3}


def _swin(m: Any) -> nn.Module:
    if m.__name__ == "torchvision":
        return m.models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [3, 3], num_classes=5)
    if m.__name__ == "timm":
        return m.models.swin_transformer.SwinTransformer(48, 4, num_classes=5, **_SWIN)
    return Returned(m.SwinForImageClassification(m.SwinConfig(image_size=48, num_labels=5, **_SWIN)), "logits")


for _libraries in ("torchvision timm", "timm transformers", "torchvision transformers"):
    _between(
        _libraries,
        f"Swin of {_libraries.replace(' ', ' and ')}",
        lambda one, other: Pair(_swin(one), _swin(other), _WINDOWS),
    )
_peers(
    "BEiT of timm and transformers",
    lambda m, t: Pair(
        m.models.beit.Beit(
            32, 8, num_classes=5, init_values=0.1, use_abs_pos_emb=False, use_rel_pos_bias=True, **_TOKENS
        ),
        Returned(
            t.BeitForImageClassification(
                t.BeitConfig(**_SIZES, use_relative_position_bias=True, layer_norm_eps=1e-6, use_mean_pooling=True)
            ),
            "logits",
        ),
        _IMAGE,
    ),
)
_peers(
    "DINOv2 of timm and transformers",
    lambda m, t: Pair(
        m.models.vision_transformer.VisionTransformer(32, 8, num_classes=0, init_values=1.0, **_TOKENS),
        Returned(t.Dinov2Model(t.Dinov2Config(**_SIZES, mlp_ratio=4, layer_norm_eps=1e-6)), "pooler_output"),
        _IMAGE,
    ),
)


class Window(nn.Module):
    """A block of Swin in code of its own: windows shifted by ``shift``, with a mask where they wrap around."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift, self.n1, self.n2 = shift, nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out, self.up, self.down = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.bias = nn.Parameter(torch.randn(2, 49))
        y, x = torch.arange(16).div(4, rounding_mode="floor"), torch.arange(16) % 4
        self.index = ((y[:, None] - y) + 3) * 7 + (x[:, None] - x) + 3

    def cut(self, x: Tensor) -> Tensor:
        """Windows in front, their places as one."""
        b, h, w, c = x.shape
        x = x.roll((-self.shift, -self.shift), (1, 2)).view(b, h // 4, 4, w // 4, 4, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h * w // 16, 16, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        q, k, v = self.qkv(self.cut(self.n1(x))).view(b, -1, 16, 3, 2, c // 2).permute(3, 0, 1, 4, 2, 5)
        scores = q @ k.mT * (c // 2) ** -0.5 + self.bias[:, self.index]
        if self.shift:
            part = lambda n: (torch.arange(n) >= n - 4).int() + (torch.arange(n) >= n - self.shift)
            parts = self.cut((10 * part(h)[:, None] + part(w))[None, ..., None].roll((self.shift,) * 2, (1, 2)))
            scores = scores - 100.0 * (parts != parts.mT)[:, :, None]
        y = self.out((scores.softmax(-1) @ v).transpose(2, 3).reshape(b, -1, 16, c))
        y = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + y.roll((self.shift, self.shift), (1, 2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class OwnSwin(nn.Module):
    """Two stages of Swin, each with a window and a shifted one; a reshape merges patches between the stages."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first, self.last = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.LayerNorm(16)
        self.blocks = nn.Sequential(Window(0), Window(2))
        self.norm, self.merge = nn.LayerNorm(32), nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.first(self.patches(x).movedim(1, -1)))
        b, h, w, c = x.shape
        x = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).reshape(b, h * w // 4, 4 * c)
        return self.last(self.merge(self.norm(x))).mean(1)


_transformers(
    "Swin against own code",
    lambda t: Pair(
        Returned(t.SwinModel(t.SwinConfig(image_size=32, embed_dim=8, depths=[2, 0], num_heads=[2, 2], window_size=4)),
                 "pooler_output"),
        OwnSwin(),
        _IMAGE,
    ),
)  # fmt: skip


class Block(nn.Module):
    """A transformer block of its own code; ``scaled``: as OpenAI's Whisper, norms before, queries and keys scaled."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.scaled, eps = scaled, 1e-5 if scaled else 1e-12
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=not scaled or n != 1) for n in range(4))
        self.n1, self.n2 = nn.LayerNorm(16, eps), nn.LayerNorm(16, eps)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = ((q * 4**-0.25) @ (k * 4**-0.25).mT).softmax(-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        mlp = lambda h: self.down(F.gelu(self.up(h)))
        if self.scaled:
            x = x + self.attention(self.n1(x))
            return x + mlp(self.n2(x))
        x = self.n1(self.attention(x) + x)
        return self.n2(mlp(x) + x)


class OwnBert(nn.Module):
    """BERT in a few lines."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds, self.norm = nn.Embedding(50, 16), nn.Embedding(2, 16), nn.LayerNorm(16, 1e-12)
        self.places, self.blocks = nn.Parameter(torch.randn(1, 512, 16)), nn.Sequential(Block(False), Block(False))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.kinds.weight[0] + self.places[:, : ids.shape[1]]
        return self.blocks(self.norm(x))


class OwnWhisper(nn.Module):
    """The encoder of Whisper in a few lines."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(8, 16, 3, padding=1), nn.Conv1d(16, 16, 3, stride=2, padding=1)
        self.register_buffer("places", torch.randn(10, 16))
        self.blocks, self.norm = nn.Sequential(Block(True), Block(True)), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(F.gelu(self.c2(F.gelu(self.c1(x)))).permute(0, 2, 1) + self.places))


_WHISPER = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8, "max_source_positions": 10, "vocab_size": 50,
    "pad_token_id": 0,
}  # fmt: skip
_transformers(
    "BERT against own code",
    lambda t: Pair(t.BertModel(t.BertConfig(**_BERT), add_pooling_layer=False), OwnBert(), _IDS),
)
_transformers(
    "encoder of Whisper against own code",
    lambda t: Pair(
        Returned(t.WhisperModel(t.WhisperConfig(**_WHISPER)).get_encoder(), "last_hidden_state"),
        OwnWhisper(),
        torch.randn(2, 8, 20),
    ),
)
_transformers(
    "GPT-NeoX eager against fused",
    lambda t: Pair(*(f(t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**_BERT)) for f in (lambda c, k: c(k), _eager)), _IDS),
)
