"""Mappings of a model for quantisers and pruners, and what smoothing does to its rounding error in 8 bits.

python examples/mappings.py
"""

import torch
from torch import nn

import intertwine as iw


class Decoder(nn.Module):
    """A language model of one block: norms, four heads, an MLP with ReLU."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(50, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(width, 64), nn.Linear(64, width), nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of tokens ``(N, T)``."""
        x = self.embed(tokens)
        y = self.first(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        return self.head(x + self.down(self.up(self.second(x)).relu()))


def rounded(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Nearest of 255 steps, one size of step for all or for each row."""
    largest = x.abs().max() if dim is None else x.abs().amax(dim, keepdim=True)
    return (x * 127 / largest).round() * largest / 127


def quantised(model: nn.Module, layers: list[nn.Linear], tokens: torch.Tensor) -> torch.Tensor:
    """Outputs with inputs and weights of some layers rounded to 8 bits."""
    before = [layer.weight.data for layer in layers]
    hooks = [layer.register_forward_pre_hook(lambda _, x: (rounded(x[0]),)) for layer in layers]
    for layer in layers:
        layer.weight.data = rounded(layer.weight.data, 1)
    with torch.no_grad():
        outputs = model(tokens)
    for layer, hook, weight in zip(layers, hooks, before):
        hook.remove()
        layer.weight.data = weight
    return outputs


torch.manual_seed(0)
model, tokens = Decoder().eval(), torch.randint(50, (8, 16))
for norm in (model.first, model.second):
    norm.weight.data[:2] *= 100  # two channels far larger than the others, as large models have
sym = iw.symmetries(model, tokens)
found = sym.mappings("llm-compressor")
print(found.summary())
print(found.to_yaml())
print(sym.mappings("torch-pruning").summary())

layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not model.head]
with torch.no_grad():
    exact = model(tokens)
plain = (quantised(model, layers, tokens) - exact).norm() / exact.norm()
modules, largest = dict(model.named_modules()), {}
hooks = [
    layer.register_forward_pre_hook(lambda m, x: largest.__setitem__(m, x[0].abs().flatten(0, -2).amax(0)))
    for layer in layers
]
with torch.no_grad():
    model(tokens)
for hook in hooks:
    hook.remove()
for entry in found.entries:
    for place in entry.places if entry.kind == "norm" else ():
        norm, balance = modules[place.writes[0]], [modules[name] for name in place.reads]
        s = largest[balance[0]].sqrt()
        norm.weight.data, norm.bias.data = norm.weight.data / s, norm.bias.data / s
        for layer in balance:
            layer.weight.data = layer.weight.data * s
smooth = (quantised(model, layers, tokens) - exact).norm() / exact.norm()
print(f"relative error of the logits in 8 bits: {plain:.3f} before smoothing, {smooth:.3f} after")
