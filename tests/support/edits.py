"""A small transformer and hand-made edits of it, each with what ``diff`` should call it."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    def __init__(self, layers: int = 3, vocabulary: int = VOCABULARY, hidden: int = HIDDEN, tied: bool = False) -> None:
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
    made = Decoder(**settings).eval()
    with torch.no_grad():
        for p in made.parameters():
            if p.ndim == 1:
                p += 0.1 * torch.randn_like(p)
    return made


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


# what is edited -> kinds of findings, and whether the function stays
EDITS: dict[str, tuple[Callable[[nn.Module], object], set[str], bool]] = {}


def edit(name: str, *kinds: str, same: bool = False) -> Callable:
    def register(change: Callable[[nn.Module], object]) -> Callable[[nn.Module], object]:
        EDITS[name] = change, set(kinds), same
        return change

    return register


def edited(model: nn.Module, change: Callable[[nn.Module], object], seed: int = 1) -> nn.Module:
    """A copy of the model, changed."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        done = change(other)
    return done if isinstance(done, nn.Module) else other


def kinds(found) -> set[str]:
    """Kinds of the findings of a difference."""
    return {f.kind for f in found.findings}


def said(found, kind: str) -> str:
    """What a difference says of one kind."""
    return " ".join(f.text for f in found.findings if f.kind == kind)


def matrices(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.ndim == 2]


@edit("identity", same=True)
def nothing(model):
    return None


@edit("heads 1 and 3 swapped", "permuted", same=True)
def heads(model):
    block, order = model.blocks[1], torch.tensor([0, 3, 2, 1])
    size = WIDTH // HEADS
    for layer in (block.q, block.k, block.v):
        layer.weight.copy_(layer.weight.unflatten(0, (HEADS, size))[order].flatten(0, 1))
        layer.bias.copy_(layer.bias.unflatten(0, (HEADS, size))[order].flatten())
    block.o.weight.copy_(block.o.weight.unflatten(1, (HEADS, size))[:, order].flatten(1))


@edit("units permuted", "permuted", same=True)
def hidden_units(model):
    for block in model.blocks:
        order = torch.randperm(HIDDEN)
        block.up.weight.copy_(block.up.weight[order])
        block.up.bias.copy_(block.up.bias[order])
        block.down.weight.copy_(block.down.weight[:, order])


@edit("unit 5 scaled by 2", "scaled", same=True)
def one_scale(model):
    block = model.blocks[0]
    block.up.weight[5] *= 2
    block.up.bias[5] *= 2
    block.down.weight[:, 5] /= 2


@edit("signs flipped", "signs flipped", same=True)
def signs(model):
    """Channel 3 of every second norm of a block."""
    for block in model.blocks:
        block.norm2.weight[3] *= -1
        block.norm2.bias[3] *= -1
        block.up.weight[:, 3] *= -1


@edit("gains folded", "gains folded", same=True)
def folded_gains(model):
    for block in model.blocks:
        gain = block.norm2.weight.clone()
        block.up.weight.mul_(gain)
        block.norm2.bias.div_(gain)
        block.norm2.weight.fill_(1)


@edit("cast to bfloat16", "cast", same=True)
def bfloat16(model):
    return model.bfloat16().float()


@edit("cast to float16", "cast", same=True)
def float16(model):
    return model.half().float()


@edit("stored as bfloat16", "stored", same=True)
def stored(model):
    return model.bfloat16()


@edit("update of rank 4", "low rank", "frozen")
def lora(model):
    for block in model.blocks:
        for layer in (block.q, block.v):
            layer.weight += 0.02 * torch.randn(WIDTH, 4) @ torch.randn(4, WIDTH)


@edit("heads swapped, then an update of rank 4", "permuted", "low rank", "frozen")
def lora_on_swapped_heads(model):
    heads(model)
    lora(model)


@edit("head only", "head only", "frozen", "noise")
def head(model):
    model.head.weight.add_(0.1 * torch.randn_like(model.head.weight))


@edit("biases only", "bias only", "frozen", "changed")
def biases(model):
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p += 0.1 * torch.randn_like(p)


@edit("pruned weights", "pruned", "frozen")
def pruned(model):
    for p in matrices(model):
        p.mul_(p.abs() > p.abs().median())


@edit("pruned units", "units removed", "pruned", "frozen")
def pruned_units(model):
    block = model.blocks[0]
    for unit in (3, 9):
        block.up.weight[unit], block.up.bias[unit], block.down.weight[:, unit] = 0, 0, 0


@edit("block re-initialised", "replaced", "frozen")
def fresh_block(model):
    for p in model.blocks[2].parameters():
        p.copy_(0.2 * torch.randn_like(p))


@edit("int8 round trip", "quantised")
def int8(model):
    for p in matrices(model):
        step = p.abs().amax(1, keepdim=True) / 127
        p.copy_((p / step).round() * step)


@edit("noise", "noise")
def noise(model):
    for p in model.parameters():
        p.add_(0.01 * p.std() * torch.randn_like(p))


@edit("special rows", "rows", "frozen")
def special_rows(model):
    model.embed.weight[[48, 49]] = torch.randn(2, WIDTH)


@edit("one tensor scaled", "scaled tensors", "frozen")
def scaled_tensor(model):
    model.blocks[1].down.weight.mul_(0.7)
