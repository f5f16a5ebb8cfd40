"""Small models of many architectures, shared by the tests of symmetries: name -> (maker, example maker)."""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from made import Made
from torch import nn

from intertwine.symmetry import Symmetry, symmetries

ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple]]] = {}


def entry(name: str, *shape: int, tokens: int = 0):
    """Register a maker; the example is a random tensor of ``shape``, or tokens below ``tokens``."""

    def example():
        g = torch.Generator().manual_seed(7)
        return (torch.randint(tokens, shape, generator=g) if tokens else torch.randn(*shape, generator=g),)

    def decorate(maker):
        ZOO[name] = (maker, example)
        return maker

    return decorate


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[nn.Module, tuple]:
    """A model with random weights and statistics, in evaluation mode, and its example."""
    maker, example = ZOO[name]
    torch.manual_seed(seed)
    model = maker().to(dtype).eval()
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if key.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
            elif key.endswith("running_mean") or (tensor.dim() == 1 and tensor.is_floating_point()):
                tensor.add_(0.3 * torch.randn_like(tensor))
    args = tuple(x.to(dtype) if x.is_floating_point() else x for x in example())
    return model, args


@cache
def found(name: str) -> tuple[nn.Module, tuple, Symmetry]:
    """A model, its example and its symmetry, for tests that leave the model as it is."""
    model, args = build(name)
    return model, args, symmetries(model, args)


@entry("mlp", 5, 6)
def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))


entry("mlp_bn", 5, 6)(
    lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)
    )
)
entry("mlp_tanh", 5, 6)(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3)))
entry("mlp_identity", 5, 6)(lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)))
entry("mlp_gelu_ln", 5, 6)(
    lambda: nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 3)
    )
)
entry("mlp_powers", 5, 6)(
    lambda: Made(
        lambda m, x: m.d(torch.exp(-(m.c(m.b(m.a(x).abs()).pow(2)) ** 2))), a=nn.Linear(6, 5), b=nn.Linear(5, 4),
        c=nn.Linear(4, 4), d=nn.Linear(4, 3),
    )
)  # fmt: skip
entry("mlp_prelu", 5, 6)(
    lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(8), nn.Linear(8, 7), nn.LeakyReLU(0.1), nn.Linear(7, 3))
)


@entry("vgg_bn", 2, 3, 8, 8)
def vgg_bn():
    block = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
    return nn.Sequential(
        *block(3, 6), nn.MaxPool2d(2), *block(6, 8), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(),
        nn.Linear(32, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


@entry("myrtle", 2, 3, 16, 16)
def myrtle():
    block = lambda i, o, *more: [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), *more]
    return nn.Sequential(
        *block(3, 4), *block(4, 6, nn.MaxPool2d(2)), *block(6, 8, nn.MaxPool2d(2)), *block(8, 8, nn.MaxPool2d(2)),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def residual_stack(inputs, width, hidden, outputs, blocks, bias=True):
    """Blocks of two layers on one stream, with a ReLU after every sum."""

    def run(m, x):
        x = F.relu(m.first(x))
        for up, down in zip(m.up, m.down):
            x = F.relu(x + down(F.relu(up(x))))
        return m.last(x)

    layer = lambda i, o: nn.Linear(i, o, bias=bias)
    first, last = layer(inputs, width), layer(width, outputs)
    up, down = ([layer(i, o) for _ in range(blocks)] for i, o in ((width, hidden), (hidden, width)))
    return Made(run, first=first, last=last, up=up, down=down)


class Basic(nn.Module):
    """A residual block with a padded (A) or convolutional (B) shortcut."""

    def __init__(self, i, o, stride=1, option="A"):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.shortcut = nn.Identity()
        self.pad = 0
        if stride != 1 or i != o:
            if option == "A":
                self.pad = (o - i) // 2
            else:
                self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad)) if self.pad else self.shortcut(x)
        out += short
        return F.relu(out)


class ResNet(nn.Module):
    """A CIFAR residual network."""

    def __init__(self, depth=3, option="A", widths=(16, 32, 64)):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        layers, i = [], widths[0]
        for stage, o in enumerate(widths):
            for k in range(depth):
                layers.append(Basic(i, o, 2 if stage and not k else 1, option))
                i = o
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(i, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn(self.conv(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


entry("resnet20_a", 2, 3, 16, 16)(lambda: ResNet(3, "A"))
entry("resnet14_b", 2, 3, 16, 16)(lambda: ResNet(2, "B"))
entry("resnet10_a", 2, 3, 8, 8)(lambda: ResNet(2, "A", (4, 8)))
entry("resnet6_b", 2, 3, 8, 8)(lambda: ResNet(1, "B", (8, 12)))
entry("resnet18", 2, 3, 16, 16)(lambda: ResNet(2, "B", (4, 6, 8, 10)))


class Dense(nn.Module):
    """Concatenated features, normalised before every convolution."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 1, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6 + 4 * k) for k in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(6 + 4 * k, 4, 3, 1, 1, bias=False) for k in range(3))
        self.norm, self.fc = nn.BatchNorm2d(18), nn.Linear(18, 5)

    def forward(self, x):
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return self.fc(F.relu(self.norm(x)).mean((2, 3)))


entry("densenet", 2, 3, 8, 8)(Dense)


class Inverted(nn.Module):
    """Expand, depthwise, project, with a skip; groups in the pointwise convolutions on demand."""

    def __init__(self, groups=1, shuffle=False, width=12):
        super().__init__()
        self.shuffle, self.groups = shuffle, groups
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.expand = nn.Conv2d(width, 2 * width, 1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(2 * width)
        self.depth = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.project = nn.Conv2d(2 * width, width, 1, groups=groups, bias=False)
        self.bn3, self.fc = nn.BatchNorm2d(width), nn.Linear(width, 4)

    def forward(self, x):
        x = self.stem(x)
        y = F.relu(self.bn1(self.expand(x)))
        if self.shuffle:
            n, c, h, w = y.shape
            y = y.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        y = F.relu6(self.bn2(self.depth(y)))
        return self.fc((x + self.bn3(self.project(y))).mean((2, 3)))


entry("mobilenet", 2, 3, 8, 8)(lambda: Inverted())
entry("mobilenet_grouped", 2, 3, 8, 8)(lambda: Inverted(3))
entry("shufflenet_2", 2, 3, 8, 8)(lambda: Inverted(2, True))
entry("shufflenet_3", 2, 3, 8, 8)(lambda: Inverted(3, True))


class Split(nn.Module):
    """ShuffleNet v2: channels split, one half transformed, joined and shuffled."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(2))
        self.shuffle, self.fc = nn.ChannelShuffle(2), nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for conv in self.convs:
            a, b = x.chunk(2, 1)
            x = self.shuffle(torch.cat([a, F.relu(conv(b))], 1))
        return self.fc(x.mean((2, 3)))


entry("channel_split", 2, 3, 6, 6)(Split)


class Squeeze(nn.Module):
    """Squeeze and excite."""

    def __init__(self):
        super().__init__()
        self.a, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.bn(self.a(x)))
        s = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return self.fc((x * s[:, :, None, None]).mean((2, 3)))


entry("senet", 2, 3, 6, 6)(Squeeze)


class Cardinal(nn.Module):
    """ResNeXt: a bottleneck with a grouped 3x3 convolution."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.a, self.b, self.c = nn.Conv2d(6, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=4), nn.Conv2d(8, 6, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 8, 6))
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        y = F.relu(self.norms[1](self.b(F.relu(self.norms[0](self.a(x))))))
        return self.fc(F.relu(x + self.norms[2](self.c(y))).mean((2, 3)))


entry("resnext", 2, 3, 6, 6)(Cardinal)


class UNet(nn.Module):
    """Down, up with a transposed convolution, joined with the skip."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1)
        self.up, self.c, self.d = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 5, 3, 1, 1), nn.Conv2d(5, 2, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        return self.d(F.relu(self.c(torch.cat([a, self.up(b)], 1))))


entry("unet", 2, 3, 8, 8)(UNet)


@entry("groupnorm_cnn", 2, 3, 8, 8)
def groupnorm_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.GroupNorm(1, 6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


@entry("instance_norm", 2, 3, 8, 8)
def instance_norm():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(),
        nn.Linear(64, 3),
    )  # fmt: skip


@entry("conv1d", 2, 3, 12)
def conv1d():
    return nn.Sequential(
        nn.Conv1d(3, 6, 3), nn.ReLU(), nn.AvgPool1d(2), nn.ConvTranspose1d(6, 6, 3, groups=2), nn.ELU(),
        nn.Conv1d(6, 2, 1), nn.Flatten(), nn.Linear(14, 3),
    )  # fmt: skip


entry("conv3d", 2, 2, 5, 5, 5)(
    lambda: nn.Sequential(
        nn.Conv3d(2, 6, 3), nn.BatchNorm3d(6), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 3)
    )
)
entry("linear_conv", 2, 3, 6, 6)(
    lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.AvgPool2d(2), nn.Conv2d(5, 4, 1), nn.Flatten(), nn.Linear(16, 3))
)
entry("pixel_shuffle", 2, 3, 5, 5)(
    lambda: nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.ReLU(), nn.PixelShuffle(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)
    )
)


@entry("weight_norm", 5, 6)
def weight_norm():
    wrap = nn.utils.parametrizations.weight_norm
    return nn.Sequential(wrap(nn.Linear(6, 8)), nn.ReLU(), wrap(nn.Linear(8, 7)), nn.ReLU(), nn.Linear(7, 3))


entry("weight_norm_by_hand", 5, 6)(
    lambda: Made(
        lambda m, x: m.out(F.relu(x @ (m.g * m.v / m.v.norm(dim=1, keepdim=True)).t())), v=(8, 6),
        g=nn.Parameter(torch.rand(8, 1) + 0.5), out=nn.Linear(8, 3),
    )
)  # fmt: skip


class Attention(nn.Module):
    """Attention by hand: packed or separate projections, fewer key heads, rotary positions, plain or fused product."""

    def __init__(self, width, heads, kv=None, packed=False, rotary=False, fused=True, causal=False, bias=True):
        super().__init__()
        kv = kv or heads
        self.heads, self.kv, self.d, self.packed, self.rotary = heads, kv, width // heads, packed, rotary
        self.fused, self.causal = fused, causal
        if packed:
            self.qkv = nn.Linear(width, 3 * width, bias=bias)
        else:
            self.q, self.k = nn.Linear(width, width, bias=bias), nn.Linear(width, kv * self.d, bias=bias)
            self.v = nn.Linear(width, kv * self.d, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        b, t, c = x.shape
        if self.packed:
            q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, self.d).permute(2, 0, 3, 1, 4)
        else:
            q = self.q(x).view(b, t, self.heads, self.d).transpose(1, 2)
            k = self.k(x).view(b, t, self.kv, self.d).transpose(1, 2)
            v = self.v(x).view(b, t, self.kv, self.d).transpose(1, 2)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if self.kv != self.heads:
            r = self.heads // self.kv
            k, v = (z[:, :, None].expand(b, self.kv, r, t, self.d).reshape(b, self.heads, t, self.d) for z in (k, v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            s = q @ k.transpose(-1, -2) / math.sqrt(self.d)
            if self.causal:
                s = s.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
            y = s.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, c))


def rotate(x):
    """Rotary positions in the half-split convention."""
    t, d = x.shape[-2:]
    angle = torch.arange(t, dtype=x.dtype)[:, None] * 0.5 ** torch.arange(d // 2, dtype=x.dtype)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    return x * cos + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin


class Gated(nn.Module):
    """SwiGLU, or ReGLU."""

    def __init__(self, width, hidden, act=F.silu, fused=False):
        super().__init__()
        self.act, self.fused = act, fused
        self.gate = nn.Linear(width, 2 * hidden if fused else hidden, bias=False)
        self.up = nn.Identity() if fused else nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        g, u = self.gate(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        return self.down(self.act(g) * u)


class RMS(nn.Module):
    """RMS norm by hand, with or without a gain."""

    def __init__(self, width, gain=True):
        super().__init__()
        self.w = nn.Parameter(torch.rand(width) + 0.5) if gain else None

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y if self.w is None else y * self.w


class Decoder(nn.Module):
    """A language model."""

    def __init__(
        self, norm=nn.LayerNorm, mlp=None, tied=True, layers=2, width=16, vocabulary=11, positions=True, **attention
    ):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(1, 32, width)) if positions else None
        mlp = mlp or (lambda: nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)))
        self.blocks = nn.ModuleList(
            nn.ModuleList([norm(width), Attention(width, 4, causal=True, **attention), norm(width), mlp()])
            for _ in range(layers)
        )
        self.norm, self.head = norm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.position is not None:
            x = x + self.position[:, : x.shape[1]]
        for n1, attention, n2, mlp in self.blocks:
            x = x + attention(n1(x))
            x = x + mlp(n2(x))
        return self.head(self.norm(x))


entry("gpt_tied", 2, 6, tokens=11)(lambda: Decoder())
entry("gpt_packed", 2, 6, tokens=11)(lambda: Decoder(packed=True, fused=False))
entry("gpt_rms", 2, 6, tokens=11)(lambda: Decoder(RMS, tied=False, layers=1))
entry("gpt_rms_plain", 2, 6, tokens=11)(lambda: Decoder(lambda w: RMS(w, False)))
entry("llama", 2, 6, tokens=11)(
    lambda: Decoder(RMS, lambda: Gated(16, 20), False, 1, positions=False, kv=2, rotary=True, bias=False)
)
entry("llama_module_norm", 2, 6, tokens=11)(
    lambda: Decoder(
        nn.RMSNorm, lambda: Gated(16, 20, F.relu, True), False, 1, positions=False, kv=2, rotary=True, fused=False
    )
)


class ViT(nn.Module):
    """A vision transformer with ``nn.MultiheadAttention`` or fused attention."""

    def __init__(self, module=True, pool="cls"):
        super().__init__()
        self.pool = pool
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16))
        self.n1, self.n2, self.n3 = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.module = module
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True) if module else Attention(16, 4, packed=True)
        self.mlp = nn.Sequential(nn.Linear(16, 20), nn.GELU(), nn.Linear(20, 16))
        self.head, self.score = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        y = self.n1(x)
        x = x + (self.attention(y, y, y, need_weights=False)[0] if self.module else self.attention(y))
        x = self.n3(x + self.mlp(self.n2(x)))
        if self.pool == "cls":
            return self.head(x[:, 0])
        return self.head((self.score(x).softmax(1).transpose(1, 2) @ x).squeeze(1))


entry("vit_module", 2, 3, 8, 8)(lambda: ViT())
entry("vit_sdpa", 2, 3, 8, 8)(lambda: ViT(False))
entry("cct", 2, 3, 8, 8)(lambda: ViT(False, "sequence"))
entry("encoder_layer", 2, 5, 8)(
    lambda: nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), nn.Linear(8, 3))
)


class Recurrent(nn.Module):
    """A recurrent network with a linear head."""

    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(3, 5, batch_first=True, **options)
        self.fc = nn.Linear(10 if options.get("bidirectional") else 5, 2)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


entry("gru", 2, 4, 3)(lambda: Recurrent(nn.GRU))
entry("lstm", 2, 4, 3)(lambda: Recurrent(nn.LSTM))
entry("lstm_deep", 2, 4, 3)(lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True))
entry("rnn_relu", 2, 4, 3)(lambda: Recurrent(nn.RNN, nonlinearity="relu"))
entry("bilinear", 5, 6)(
    lambda: Made(
        lambda m, x: m.out(torch.einsum("bi,bj,ijk->bk", m.a(x), m.b(x), m.core)), a=nn.Linear(6, 5),
        b=nn.Linear(6, 4), core=(5, 4, 7), out=nn.Linear(7, 3),
    )
)  # fmt: skip
entry("layer_scale", 5, 6)(  # a gain for each channel of a residual branch, and a learned number
    lambda: Made(
        lambda m, x: m.d(m.number * ((x := m.a(x)) + m.gain * m.c(F.silu(m.b(x))))), a=nn.Linear(6, 8),
        b=nn.Linear(8, 10), c=nn.Linear(10, 8), d=nn.Linear(8, 3), gain=nn.Parameter(torch.rand(8)),
        number=nn.Parameter(torch.rand(())),
    )
)  # fmt: skip
entry("tied_autoencoder", 5, 6)(lambda: Made(lambda m, x: F.relu(x @ m.w.t() + m.b) @ m.w, w=(7, 6), b=(7,)))


class ConvNeXt(nn.Module):
    """A depthwise convolution, then a layer norm and an MLP on channels last."""

    def __init__(self):
        super().__init__()
        self.stem, self.n0 = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
        self.depth, self.norm = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.LayerNorm(8)
        self.up, self.down, self.gain = nn.Linear(8, 12), nn.Linear(12, 8), nn.Parameter(torch.rand(8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = self.n0(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = (self.gain * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)
        return self.fc((x + y).mean((-2, -1)))


entry("convnext", 2, 3, 8, 8)(ConvNeXt)
