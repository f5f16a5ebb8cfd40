"""What a user of the command line might have in a file."""

import torch
from torch import nn

INSTANCE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU())


def make_net(width=12, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width, bias=bias), nn.ReLU(), nn.Linear(width, 10))


def not_a_model():
    return 3


def broken():
    raise KeyError("inside")


def my_sigma(x):
    return x * torch.tanh(x)
