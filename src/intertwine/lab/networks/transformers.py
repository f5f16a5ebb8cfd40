"""The Compact Convolutional Transformer: convolutional tokens, encoder blocks, a learned average of the tokens."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Multi-head self-attention without biases on queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(N, T, C)`` to ``(N, T, C)``."""
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.drop(self.proj(mixed.transpose(1, 2).reshape(n, t, c)))


class StochasticDepth(nn.Module):
    """Stochastic depth: drops a residual branch for whole examples in training, and rescales kept ones."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Drop or rescale ``(N, ...)``, keeping the shape."""
        if not self.training or self.probability == 0:
            return x
        keep = 1 - self.probability
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device, dtype=x.dtype) < keep
        return x * kept / keep

    def extra_repr(self) -> str:
        """Arguments for ``print``."""
        return f"probability={self.probability:.3g}"


class EncoderBlock(nn.Module):
    """``y = norm2(x + attn(norm1(x)))``, then ``y + mlp(y)``: the second norm acts on the stream, not in the branch."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, depth_dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, dropout)
        self.drop1 = StochasticDepth(depth_dropout)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.gelu = nn.GELU()
        self.linear2 = nn.Linear(hidden, width)
        self.drop2 = StochasticDepth(depth_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``(N, T, C)`` to ``(N, T, C)``."""
        x = self.norm2(x + self.drop1(self.attn(self.norm1(x))))
        return x + self.drop2(self.linear2(self.gelu(self.linear1(x))))


class CompactTransformer(nn.Module):
    """Convolutional tokenizer, sinusoidal positions, encoder blocks, attention pooling over tokens, linear.

    ``ratio`` is the feed-forward width over the token width; ``depth_dropout`` is the probability of dropping the last
    block's branches, to which it rises linearly over the blocks, from 0.
    """

    def __init__(
        self, size: int, channels: int, width: int, blocks: int, heads: int, ratio: int, classes: int, dropout: float,
        depth_dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        if width % 2 or width % heads:
            raise ValueError(f"width must be even and a multiple of heads ({heads}). Got {width}.")
        self.conv = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        tokens = ((size + 1) // 2) ** 2
        self.register_buffer("positions", _sinusoids(tokens, width), persistent=False)
        rates = [depth_dropout * i / max(blocks - 1, 1) for i in range(blocks)]
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, ratio * width, dropout, rate) for rate in rates))
        self.norm = nn.LayerNorm(width)
        self.attention_pool = nn.Linear(width, 1)
        self.linear = nn.Linear(width, classes)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, classes)``."""
        tokens = self.pool(self.relu(self.conv(x))).flatten(2).transpose(1, 2) + self.positions
        tokens = self.norm(self.blocks(tokens))
        weights = self.attention_pool(tokens).softmax(dim=1)
        return self.linear((weights * tokens).sum(dim=1))


def cct_6_3x1(
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    width: int = 256,
    blocks: int = 6,
    dropout: float = 0.1,
    depth_dropout: float = 0.1,
) -> CompactTransformer:
    """CCT-6/3x1 with sinusoidal positions: six encoder blocks, one 3x3 convolution as tokenizer.

    Paper 1 trains ten of them and stitches after each encoder block (v2 D.4); the architecture is Hassani et al. 2021
    (arXiv:2104.05704). 3,168,267 trainable parameters at the default arguments. Images are ``size`` high and wide; four
    heads share the token width, and the feed-forward layer has twice as many units.

    Examples:
        >>> sum(p.numel() for p in cct_6_3x1().parameters())
        3168267
    """
    return CompactTransformer(size, channels, width, blocks, 4, 2, classes, dropout, depth_dropout)


def _sinusoids(tokens: int, width: int) -> Tensor:
    """``sin(t w_i)`` at even and ``cos(t w_i)`` at odd channels, ``w_i = 10000^(-2i / C)``; shape ``(1, T, C)``."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(tokens, dtype=torch.float32)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[None]
