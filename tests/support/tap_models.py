"""Modules that have broken other feature readers."""

import torch
from made import Function, Made
from torch import nn
from torch.nn import functional as F


def shared_relu():
    """One ReLU module called three times, on three shapes."""

    def run(m, x):
        x = m.relu(m.stem(x))
        x = m.relu(m.down(x))
        return m.relu(m.head(x.mean((2, 3))))

    return Made(
        run, stem=nn.Conv2d(3, 4, 3, padding=1), down=nn.Conv2d(4, 6, 3, stride=2), head=nn.Linear(6, 5), relu=nn.ReLU()
    )


def in_place():
    """A convolution whose output an in-place ReLU, an in-place sum and a fill then overwrite."""

    def run(m, x):
        x = m.norm(m.conv(x))
        x = m.relu(x)
        x += 1
        y = x.mean((2, 3))
        x.fill_(-7)
        return y

    return Made(run, conv=nn.Conv2d(3, 4, 3, padding=1), norm=nn.BatchNorm2d(4), relu=nn.ReLU(inplace=True))


def nested():
    """Outputs that are tuples, dicts, and integers; a module that never runs; weights without a batch axis."""

    def run(m, x):
        x = x + m.table(torch.arange(x.shape[1]))
        y, _ = m.attention(x, x, x)
        out = m.pair(y)
        m.sort(out["logits"])
        return out

    return Made(
        run, attention=nn.MultiheadAttention(8, 2, batch_first=True), table=nn.Embedding(5, 8), unused=nn.Linear(8, 8),
        pair=Function(lambda x: {"weights": x.mean(-1), "logits": x.mean(1), "last_hidden_state": x}),
        sort=Function(torch.argsort),
    )  # fmt: skip


def words():
    """Called with keyword arguments; refuses labels."""

    def run(m, input_ids, attention_mask=None):
        x = m.act(m.embed(input_ids))
        return x if attention_mask is None else x * attention_mask[..., None]

    return Made(run, embed=nn.Embedding(11, 6), act=nn.GELU())


def fails():
    """Raises on the batch that holds a 13."""

    def run(m, x):
        y = m.relu(m.lin(x))
        if (x == 13).any():
            raise ArithmeticError("thirteen")
        return y

    return Made(run, lin=nn.Linear(3, 4), relu=nn.ReLU())


def functional():
    """Activations called as functions."""
    return Made(lambda m, x: m.two(F.relu(m.one(x))), one=nn.Linear(3, 4), two=nn.Linear(4, 2))


def hooks(model):
    """Number of forward hooks anywhere in the model."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
