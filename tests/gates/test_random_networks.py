"""Networks drawn at random: every claim of the room on architectures that nobody chose for it."""

import random

import pytest
import torch
from theorem_kernels import tangent_kernel
from torch import nn

import intertwine as iw

SEEDS = range(8)


class Block(nn.Module):
    """A convolution of any kind, perhaps batch norm, perhaps a skip, a ReLU at the end, perhaps a pooling."""

    def __init__(self, rng: random.Random, channels: int, size: int):
        super().__init__()
        groups = rng.choice([1, 1, channels])  # depthwise at times
        out = channels * rng.choice([1, 2]) if groups > 1 else rng.choice([1, 2, 3])
        kernel, padding = rng.choice([(1, 0), (2, 1), (3, 1), (3, 0)] if size > 2 else [(1, 0), (3, 1)])
        stride, dilation = rng.choice([1, 1, 2]), rng.choice([1, 1, 2]) if size > 4 and kernel > 1 else 1
        mode = rng.choice(["zeros", "zeros", "circular"])
        self.conv = nn.Conv2d(
            channels, out, kernel, stride, padding, dilation, groups, rng.random() < 0.5, padding_mode=mode
        )
        self.norm = nn.BatchNorm2d(out) if rng.random() < 0.5 else nn.Identity()
        self.skip = rng.random() < 0.7
        pools = [nn.Identity(), nn.MaxPool2d(2, 1), nn.AvgPool2d(2, 1, rng.choice([0, 1])), nn.AvgPool2d(2, 2)]
        self.pool = rng.choice(pools)

    def forward(self, x):
        y = self.norm(self.conv(x))
        y = torch.relu(y + x if self.skip and y.shape == x.shape else y)
        return self.pool(y) if y.shape[-1] > 2 else y


def network(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    channels, size = rng.choice([1, 2]), rng.choice([3, 4, 5])
    x = torch.randn(4, channels, size, size, dtype=torch.float64)
    blocks, h = [], x
    for _ in range(rng.choice([1, 2])):
        blocks.append(Block(rng, h.shape[1], h.shape[2]).double().eval())
        h = blocks[-1](h)
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if rng.random() < 0.5 else [nn.Flatten()]
    width = nn.Sequential(*end)(h).shape[1]
    head = (
        [nn.Linear(width, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)] if rng.random() < 0.5 else [nn.Linear(width, 2)]
    )
    model = nn.Sequential(*blocks, *end, *head).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2)
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
    return model, x


def close(a, b, tolerance=1e-10):
    size = float(b.detach().abs().max()) if b.numel() else 0.0  # some of them have no active path at all
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("seed", SEEDS)
def test_paths_and_kernels(seed):
    model, x = network(seed)
    found = iw.gates.paths(model, x, output=1)
    close(found.outputs, model(x)[:, 1].detach())
    for input in ("x", "ones"):
        brute = iw.gates.paths(model, x, output=1, input=input).kernel()
        close(iw.gates.neural_path_kernel(model, x, output=1, input=input), brute)


@pytest.mark.parametrize("seed", SEEDS)
def test_tangent_kernels_are_the_definition(seed):
    model, x = network(seed)
    expected = tangent_kernel(model, x, x[:2])
    for memory in (2**30, 1e3):
        close(iw.gates.neural_tangent_kernel(model, x, x[:2], memory=memory), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_gates_are_affine_and_gated_outputs_are_inner_products(seed):
    model, x = network(seed)
    linear = iw.gates.dlgn(model, seed=seed).double().eval()
    zero = linear.pre_activations(torch.zeros_like(x[:1]))
    sums, left, right = (linear.pre_activations(z) for z in (x[:2] + x[2:], x[:2], x[2:]))
    for total, a, b, offset in zip(sums, left, right, zero):
        close(total.detach(), (a + b - offset).detach())
    for input in ("x", "ones"):
        gated = iw.gates.dgn(model, input=input, seed=seed).double().eval()
        found = iw.gates.paths(gated, x, output=0)
        close(found.outputs, gated(x)[:, 0].detach())
        close(iw.gates.neural_path_kernel(gated, x), found.kernel())
