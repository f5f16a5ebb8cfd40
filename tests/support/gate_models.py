"""Small ReLU networks of every family, in float64 and evaluation mode, with inputs for them."""

import torch
from made import Function
from torch import Tensor, nn


def conv(cin: int, cout: int, dims: int = 2, **options) -> nn.Module:
    options = {"kernel_size": 3, "padding": 1, "padding_mode": "circular", "bias": False} | options
    return (nn.Conv1d if dims == 1 else nn.Conv2d)(cin, cout, **options)


class Residual(nn.Module):
    """Blocks of linear layers with skips; the ReLU sits inside the branch or after the addition."""

    def __init__(self, width: int = 3, blocks: int = 2, inside: bool = True, bias: bool = False):
        super().__init__()
        self.first = nn.Linear(4, width, bias=bias)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width, bias=bias), nn.ReLU(), nn.Linear(width, width, bias=bias))
            for _ in range(blocks)
        )
        self.last = nn.Linear(width, 2, bias=bias)
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x if self.inside else x.relu()
        for branch in self.branches:
            x = x + branch(x.relu()) if self.inside else (x + branch(x)).relu()
        return self.last(x.relu() if self.inside else x)


class ConvResidual(nn.Module):
    """A convolutional block with batch norm, a projection and the ReLU after the addition."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = conv(1, 2, padding_mode="zeros"), nn.BatchNorm2d(2)
        self.branch = nn.Sequential(conv(2, 2, stride=2, padding_mode="zeros"), nn.BatchNorm2d(2))
        self.skip = nn.Conv2d(2, 2, 1, stride=2, bias=False)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.branch(x) + self.skip(x))
        return self.head(x.mean((2, 3)))


class Shortcut(nn.Module):
    """A parameter-free shortcut that drops positions and pads channels, then joins its input by concatenation."""

    def __init__(self):
        super().__init__()
        self.a, self.b = conv(1, 2, padding_mode="zeros", bias=True), conv(2, 3, stride=2, padding_mode="zeros")
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        skip = nn.functional.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 0, 1))
        h = (self.b(h) + skip).relu()
        return self.head(torch.cat([h, x[:, :, ::2, ::2] * 2 - 1], 1).mean((2, 3)))


def _mlp(bias: bool = False, slope: float | None = None) -> nn.Module:
    act = nn.ReLU() if slope is None else nn.LeakyReLU(slope)
    return nn.Sequential(nn.Linear(4, 3, bias=bias), act, nn.Linear(3, 3, bias=bias), act, nn.Linear(3, 2, bias=bias))


def _gap(dims: int, pad: str = "circular", bias: bool = False) -> nn.Module:
    pool = nn.AdaptiveAvgPool1d(1) if dims == 1 else nn.AdaptiveAvgPool2d(1)
    layers = [conv(1, 2, dims, padding_mode=pad, bias=bias), nn.ReLU(), conv(2, 2, dims, padding_mode=pad, bias=bias)]
    return nn.Sequential(
        *layers, nn.ReLU(), pool, nn.Flatten(), nn.Linear(2, 3, bias=bias), nn.ReLU(), nn.Linear(3, 2, bias=bias)
    )


def _pools(kind: str) -> nn.Module:
    pool = nn.MaxPool2d(2) if kind == "max" else nn.AvgPool2d(2)
    return nn.Sequential(
        conv(1, 2, padding_mode="zeros", bias=True), nn.BatchNorm2d(2), nn.ReLU(), pool, nn.Flatten(), nn.Linear(8, 2)
    )


def _gated_pools() -> nn.Module:
    a, b = conv(1, 2, padding_mode="zeros"), conv(2, 2, padding_mode="zeros", groups=2)
    pool = nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(a, nn.ReLU(), pool, b, nn.AvgPool2d(2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1))


MODELS = {
    "mlp": (_mlp, (4,)),
    "mlp, biases": (lambda: _mlp(True), (4,)),
    "mlp, leaky": (lambda: _mlp(True, 0.1), (4,)),
    "mlp, absolute value": (lambda: nn.Sequential(nn.Linear(4, 3), Function(torch.abs), nn.Linear(3, 2)), (4,)),
    "mlp, parametric": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3, 0.3), nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 2)),
        (4,),
    ),
    "mlp on images": (lambda: nn.Sequential(nn.Flatten(), *_mlp()), (1, 2, 2)),
    "conv 1d GAP": (lambda: _gap(1), (1, 5)),
    "conv 2d GAP": (lambda: _gap(2), (1, 3, 3)),
    "zero-padded GAP": (lambda: _gap(2, "zeros", True), (1, 3, 3)),
    "strided, no pooling": (
        lambda: nn.Sequential(
            conv(2, 2, stride=2, padding_mode="zeros", bias=True), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
        ),
        (2, 4, 4),
    ),
    "average pooling": (lambda: _pools("average"), (1, 4, 4)),
    "max pooling": (lambda: _pools("max"), (1, 4, 4)),
    "overlapping pools, groups": (_gated_pools, (1, 4, 4)),
    "residual, ReLU inside": (Residual, (4,)),
    "residual, ReLU after": (lambda: Residual(inside=False), (4,)),
    "residual, biases": (lambda: Residual(inside=False, bias=True), (4,)),
    "residual conv, batch norm": (ConvResidual, (1, 4, 4)),
    "shortcut and concatenation": (Shortcut, (1, 4, 4)),
}


def make(name: str, seed: int = 0) -> nn.Module:
    factory, _ = MODELS[name]
    torch.manual_seed(seed)
    model = factory().double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model


def inputs(name: str, n: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(n, *MODELS[name][1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
