"""What a user of the command line might have in a file."""

import random

import numpy as np
import torch
from torch import nn

INSTANCE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU())


def make_net(width=12, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width, bias=bias), nn.ReLU(), nn.Linear(width, 10))


def made_by_numpy(width=12):
    net = make_net(width)
    with torch.no_grad():
        net[1].weight.copy_(torch.from_numpy(np.random.randn(width, 64)) * random.random())  # noqa: NPY002
    return net


def not_a_model():
    return 3


def broken():
    raise KeyError("inside")


def my_sigma(x):
    return x * torch.tanh(x)
