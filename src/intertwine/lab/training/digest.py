"""Digest of the weights of a module, as a short text."""

import hashlib

import torch
from torch import nn


def digest(module: nn.Module) -> str:
    """Hash of a module's parameters and buffers, bit for bit; their names and types count too.

    Examples:
        >>> digest(nn.Linear(2, 2)) == digest(nn.Linear(2, 2))
        False
    """
    text = hashlib.blake2b(digest_size=16)
    for name, tensor in module.state_dict().items():
        text.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        text.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return text.hexdigest()
