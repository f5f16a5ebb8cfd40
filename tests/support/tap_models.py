"""Modules that have broken other feature readers."""

import torch
from torch import nn
from torch.nn import functional as F


class SharedRelu(nn.Module):
    """One ReLU module called three times, on three shapes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 6, 3, stride=2)
        self.head = nn.Linear(6, 5)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.stem(x))
        x = self.relu(self.down(x))
        return self.relu(self.head(x.mean((2, 3))))


class InPlace(nn.Module):
    """A convolution whose output an in-place ReLU, an in-place sum and a fill then overwrite."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.norm(self.conv(x))
        x = self.relu(x)
        x += 1
        y = x.mean((2, 3))
        x.fill_(-7)
        return y


class Nested(nn.Module):
    """Outputs that are tuples, dicts, and integers; a module that never runs; weights without a batch axis."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.table = nn.Embedding(5, 8)
        self.unused = nn.Linear(8, 8)
        self.pair = Pair()
        self.sort = Sort()

    def forward(self, x):
        x = x + self.table(torch.arange(x.shape[1]))
        y, _ = self.attention(x, x, x)
        out = self.pair(y)
        self.sort(out["logits"])
        return out


class Pair(nn.Module):
    def forward(self, x):
        return {"weights": x.mean(-1), "logits": x.mean(1), "last_hidden_state": x}


class Sort(nn.Module):
    def forward(self, x):
        return x.argsort()


class Words(nn.Module):
    """Called with keyword arguments; refuses labels."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.act = nn.GELU()

    def forward(self, input_ids, attention_mask=None):
        x = self.act(self.embed(input_ids))
        return x if attention_mask is None else x * attention_mask[..., None]


class Fails(nn.Module):
    """Raises on the batch that holds a 13."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.lin(x))
        if (x == 13).any():
            raise ArithmeticError("thirteen")
        return y


class Functional(nn.Module):
    """Activations called as functions."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 4)
        self.two = nn.Linear(4, 2)

    def forward(self, x):
        return self.two(F.relu(self.one(x)))


def hooks(model):
    """Number of forward hooks anywhere in the model."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
