"""A double of an accelerator: tensors that say they are on one, refuse mixed devices, and count copies to the host."""

import importlib
from collections import Counter
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from intertwine.programs.part import Replayed

DEVICE = torch.device("cuda:0")
MOVES = {"_to_copy", "copy_", "_copy_from"}  # what may read one device and write the other
INDEXED = {"index", "index_put", "index_put_"}  # whose indices may lie on the host


class There(torch.Tensor):
    """A tensor of the double; its numbers lie on the CPU."""

    @staticmethod
    def __new__(cls, value, requires_grad=False):
        value = value.value if isinstance(value, There) else value  # as a parameter of the same class is made
        made = torch.Tensor._make_wrapper_subclass(
            cls, value.shape, value.stride(), value.storage_offset(), dtype=value.dtype, device="meta",
            requires_grad=requires_grad,
        )  # fmt: skip
        made.value = value
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: DEVICE)
    is_meta = property(lambda self: False)
    is_cuda = property(lambda self: True)

    def tolist(self):
        copies["copy"] += 1
        return self.value.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


copies = Counter()


def run(func, args, kwargs):
    """Run one operation on the device of its tensors."""
    name = func.overloadpacket.__name__
    seen = []
    tree_map_only(torch.Tensor, seen.append, (args, kwargs))
    there = [isinstance(x, There) for x in seen]
    asked = kwargs.get("device")
    mixed = any(there) and not all(x or y.ndim == 0 for x, y in zip(there, seen))
    if mixed and name not in MOVES and not (name in INDEXED and there[0]):
        shapes = [(("there" if x else "here"), tuple(y.shape)) for x, y in zip(there, seen)]
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {shapes}")
    moved = asked is not None and torch.device(asked).type != "cpu"
    out = moved or (any(there) and asked is None)
    if (any(there) and asked is not None and not moved) or (name == "_local_scalar_dense" and any(there)):
        copies["item" if name == "_local_scalar_dense" else "copy"] += 1
        out = False
    if name == "copy_":
        out = there[0]
        copies["copy"] += len(there) > 1 and there[1] and not there[0]
    plain = lambda x: x.value if isinstance(x, There) else torch.device("cpu") if isinstance(x, torch.device) else x
    found = func(*tree_map(plain, args), **{k: tree_map(plain, v) for k, v in kwargs.items()})
    if name.endswith("_") and isinstance(args[0], There) and args[0].shape == found.shape:  # in place
        return args[0]
    return tree_map_only(torch.Tensor, There, found) if out else found


class Double(TorchDispatchMode):
    """Mode that puts on the double what is created for its device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


@contextmanager
def other_device():
    """Context in which ``"cuda:0"`` is the double; yields the counter of copies to the host, "copy" and "item"."""
    copies.clear()
    draws = {"get_rng_state": mock.Mock(return_value=torch.zeros(16, dtype=torch.uint8)), "device": nullcontext}
    quiet = dict.fromkeys(("_lazy_init", "set_rng_state", "manual_seed", "manual_seed_all"), mock.DEFAULT)
    recorder = importlib.import_module("intertwine.programs.capture")  # refuses subclasses, whose insides it cannot see
    own = (
        mock.patch.object(recorder, "check_states"),
        mock.patch.object(Replayed, "__call__", lambda self, *x, kind=(): self._work(*x)),
    )
    with Double(), mock.patch.multiple("torch.cuda", **draws, **quiet), own[0], own[1]:
        yield copies


def moved(model: nn.Module) -> nn.Module:
    """The model on the double."""
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = nn.Parameter(There(p.detach()), requires_grad=p.requires_grad)
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = There(b)
    return model
