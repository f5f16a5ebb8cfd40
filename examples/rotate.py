# %% [markdown]
# # Rotate a network before quantising it
#
# A stream in which one channel is far larger than the others is hard to quantise. A network with RMS norms can compute
# the same function with its stream rotated; in a Hadamard basis the outlier is spread over all channels.

# %%
import torch
from torch import nn

import intertwine as iw


class Decoder(nn.Module):
    """Two gated MLPs on a stream with RMS norms."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, width), nn.Linear(width, 100, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(width, 96) for _ in range(2))
        self.gate = nn.ModuleList(nn.Linear(width, 96) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(96, width) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, up, gate, down in zip(self.norms, self.up, self.gate, self.down):
            y = norm(x)
            x = x + down(up(y) * nn.functional.silu(gate(y)))
        return self.head(self.norms[2](x))


torch.manual_seed(0)
model, tokens = Decoder(), torch.randint(100, (8, 16))
model.embed.weight.data[:, 3] *= 30  # an outlier, as large language models have

# %%
turned = iw.rotate(model, tokens)
print(turned)
iw.testing.assert_same_function(model, turned.model, tokens)

# %% [markdown]
# The table gives the largest number in the stream, in units of its root mean square, and the error of the logits when
# the inputs of all linear layers are rounded to 4 bits:


# %%
def rounded(x: torch.Tensor, bits: int = 4) -> torch.Tensor:
    step = x.abs().max() / (2 ** (bits - 1) - 1)
    return (x / step).round() * step


def measured(network: nn.Module) -> tuple[float, float]:
    stream = network.embed(tokens)
    exact = network(tokens)
    layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
    hooks = [m.register_forward_pre_hook(lambda _, x: (rounded(x[0]),)) for m in layers]
    error = (network(tokens) - exact).norm() / exact.norm()
    for hook in hooks:
        hook.remove()
    return float(stream.abs().max() / stream.square().mean().sqrt()), float(error)


with torch.no_grad():
    for name, network in {"as it was": model, "rotated": turned.model}.items():
        peak, error = measured(network)
        print(f"{name:10} peak {peak:4.1f}   error at 4 bits {error:.1%}")

# %%
turned
