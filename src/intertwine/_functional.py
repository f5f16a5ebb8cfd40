"""Running a module with other tensors than its own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from ._evaluation import alone


def run_with(model: nn.Module, tensors: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Run ``model`` with some of its parameters and buffers replaced, under any of their names, wherever it uses them.

    ``torch.func.functional_call`` puts tensors in and takes them out again name by name: a module that is registered
    under two names would keep the tensors. Here every place that holds a tensor is written once.
    """
    own = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    new = {id(tensor): tensors[name] for name, tensor in own if name in tensors}
    places: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if id(tensor) in new:
                places[f"{prefix}.{name}" if prefix else name] = new[id(tensor)]
    with alone(model):
        return functional_call(model, places, args, kwargs, tie_weights=False)
