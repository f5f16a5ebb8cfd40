# %% [markdown]
# # Quantise a model that nobody has written a recipe for
#
# Quantisers keep tables of the symmetries of each architecture. Here is a small transformer that is in no table:
# attention and gated MLPs behind RMS norms, trained on the rows of handwritten digits.

# %%
import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intertwine as iw
from intertwine.lab import data
from intertwine.symmetry import Leaf
from intertwine.symmetry.transformation import with_parts


class Block(nn.Module):
    """Attention and a gated MLP, each after an RMS norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(N, T, C)`` to tokens."""
        n, t, width = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Reader(nn.Module):
    """A transformer that reads the rows of an image."""

    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, 8, 8)`` to logits."""
        return self.head(self.norm(self.blocks(self.embed(x) + self.place)).mean(1))


digits = data.load("digits")
x, y = digits.train.inputs.float().squeeze(1), digits.train.labels
test, labels = digits.test.inputs.float().squeeze(1), digits.test.labels

torch.manual_seed(0)
model = Reader()
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
for _ in range(300):
    rows = torch.randint(0, len(x), (64,))
    optimiser.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimiser.step()
model.eval()
print(f"accuracy {float((model(test).argmax(1) == labels).float().mean()):.1%}")

# %% [markdown]
# The mappings that llm-compressor needs are found by tracing one run of the model. Every entry is proved: a random
# scale of exactly that mapping leaves the outputs unchanged.

# %%
sym = iw.symmetries(model, x[:4])
mappings = sym.mappings("llm-compressor")
print(mappings.summary())

# %%
print(mappings.to_yaml())

# %% [markdown]
# ## What smoothing does
#
# Outliers move from activations into weights. If a channel's activations are at most `a` and its weights at most `w`,
# its activations are divided by `a^α / w^(1 - α)`, jointly in all layers that a generator of scales moves alike.


# %%
def activations(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Largest magnitude of every channel that a linear layer reads, by the name of its weight."""
    found: dict[str, Tensor] = {}

    def note(name: str):
        return lambda _, inputs: found.__setitem__(name, inputs[0].flatten(0, -2).abs().amax(0))

    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    hooks = [module.register_forward_pre_hook(note(f"{name}.weight")) for name, module in linear.items()]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


def smoothing(model: nn.Module, sym: iw.Symmetry, x: Tensor, alpha: float):
    """The element that balances the spread of channel sizes between activations and weights.

    If a channel's activations are at most ``a`` and its weights at most ``w``, its activations are divided by
    ``a^alpha / w^(1 - alpha)``, jointly in all layers that a generator of scales moves alike.
    """
    state, sizes, g = dict(model.named_parameters()), activations(model, x), sym.identity()
    for space in sym.spaces:
        readers: dict[tuple[float, ...], list[str]] = {}
        for name, layout in sym.layouts.items():
            leaf = layout.axes[-1]
            if name in sizes and isinstance(leaf, Leaf) and leaf.space == space.name and not space.parents:
                readers.setdefault(tuple(map(float, leaf.scale)), []).append(name)
        readers = {scale: names for scale, names in readers.items() if any(scale)}
        if readers:
            a = torch.stack([torch.stack([sizes[n] for n in names]).amax(0) for names in readers.values()])
            w = torch.stack(
                [torch.stack([state[n].abs().amax(0) for n in names]).amax(0) for names in readers.values()]
            )
            wanted = (alpha * a.log() - (1 - alpha) * w.log()).detach().double()
            exponents = torch.tensor(list(readers), dtype=torch.float64)
            g = with_parts(g, space.name, scales=torch.linalg.pinv(exponents) @ wanted)
    return g


smoothed = sym.act(smoothing(model, sym, x[:1000], alpha=0.5), model)
print(f"change of the function: {iw.testing.function_error(model, smoothed, test):.0e}")

# %% [markdown]
# The weights and inputs of every linear layer are rounded, each tensor to the nearest point of its own grid. Rotations
# spread outliers over all channels; no channel of this small model stands out, so rotating it does not help.


# %%
def rounded(t: Tensor, bits: int) -> Tensor:
    """Numbers rounded to a symmetric grid that reaches the largest of them."""
    top = 2 ** (bits - 1) - 1
    step = t.abs().amax() / top
    return (t / step).round() * step


def quantised(model: nn.Module, bits: int) -> nn.Module:
    """A copy that rounds the weights and inputs of every linear layer to the nearest of ``2^bits`` numbers."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = rounded(module.weight.data, bits)
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0], bits),))
    return twin


rotated = iw.rotate(iw.fold(model, x[:4]).model, x[:4]).model
with torch.no_grad():
    logits = model(test)
    for bits in (8, 6, 4):
        print(f"{bits} bits, error of the logits:", end="")
        for name, network in {"as it is": model, "smoothed": smoothed, "rotated": rotated}.items():
            error = (quantised(network, bits)(test) - logits).norm() / logits.norm()
            print(f"   {name} {float(error):.2%}", end="")
        print()

# %%
page = mappings.to_html("mappings.html")
