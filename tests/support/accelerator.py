"""A device that is none: tensors that pretend to live elsewhere, refuse to meet those of the host, and count copies.

``OnDevice`` tensors say that they are on ``xla:0``; a dispatch mode sees every operation, so that one with tensors of
both places is refused as an accelerator refuses it, and what goes to the host is counted.
"""

from collections import Counter
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

FAKE = torch.device("xla:0")
_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}


class OnDevice(Tensor):
    """A tensor of the host that says it is elsewhere."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        """Wrap a tensor of the host."""
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that is none."""
        return FAKE

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """All is done by the mode."""
        if _MODES:
            return _MODES[-1].act(func, args, kwargs or {})
        raise RuntimeError(f"{func} outside of the device")


_MODES: list["Accelerator"] = []


class Accelerator(TorchDispatchMode):
    """Operations on the device: counts of what was copied to the host, in ``copies``."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: Counter[str] = Counter()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See an operation."""
        return self.act(func, args, kwargs or {})

    def act(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation where its tensors are."""
        name = func._schema.name
        there, here = [], []

        def sort(x: Any) -> None:
            if isinstance(x, OnDevice):
                there.append(x)
            elif isinstance(x, Tensor) and x.ndim:
                here.append(x)

        tree_map(sort, (args, kwargs))
        wanted = kwargs.get("device")
        target = torch.device(wanted).type if wanted is not None else None
        plain_args, plain = tree_map(_inner, (args, {k: v for k, v in kwargs.items() if k != "device"}))
        if wanted is not None:
            plain["device"] = torch.device("cpu")
        if name == "aten::copy_" and there and here:
            if isinstance(args[0], OnDevice):
                self.moved += 1
                func(*plain_args, **plain)
                return args[0]
            self.copies["copy_"] += 1
            return func(*plain_args, **plain)
        if name in ("aten::_to_copy", "aten::to") and target is not None:
            if there and target == "cpu":
                self.copies["to cpu"] += 1
                return func(*plain_args, **plain)
            self.moved += not there
            return tree_map(_wrapped, func(*plain_args, **plain)) if target == FAKE.type else func(*plain_args, **plain)
        indexed = name in ("aten::index.Tensor", "aten::index_put_", "aten::index", "aten::_index_put_impl_")
        if there and here and not indexed:
            raise RuntimeError(f"expected all tensors on one device. Got {FAKE} and cpu in {name}.")
        if there and name in _READS:
            self.copies[name] += 1
            return func(*plain_args, **plain)
        found = func(*plain_args, **plain)
        if func._schema.is_mutable and there:
            return tree_map(lambda x: x, args[0]) if isinstance(args[0], OnDevice) else kwargs.get("out", args[0])
        return tree_map(_wrapped, found) if there or target == FAKE.type else found


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, OnDevice) else x


def _wrapped(x: Any) -> Any:
    return OnDevice(x) if isinstance(x, Tensor) and not isinstance(x, OnDevice) else x


@contextmanager
def accelerator():
    """Operate the device inside."""
    mode = Accelerator()
    _MODES.append(mode)
    try:
        with mode:
            yield mode
    finally:
        _MODES.pop()


def moved(model: nn.Module) -> nn.Module:
    """The model with its weights on the device."""
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, value in store.items():
                if value is None:
                    continue
                there = OnDevice(value.detach())
                store[name] = nn.Parameter(there, requires_grad=False) if store is module._parameters else there
    return model
