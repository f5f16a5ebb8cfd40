"""Changes of structure: untied parameters and added biases."""

from torch import Tensor, nn


def untie(model: nn.Module, name: str) -> None:
    """Untie a parameter in place: it becomes a copy, and ``tie_word_embeddings`` of any configuration ``False``."""
    place, _, last = name.rpartition(".")
    module = model.get_submodule(place)
    tied = getattr(module, last)
    setattr(module, last, nn.Parameter(tied.detach().clone(), requires_grad=tied.requires_grad))
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "tie_word_embeddings", False):
            config.tie_word_embeddings = False


def can_have_bias(model: nn.Module, name: str) -> bool:
    """Whether a module is a linear layer that was built without a bias."""
    modules = dict(model.named_modules())
    module = modules.get(name)
    return isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and module.bias is None


def add_bias(model: nn.Module, name: str, numbers: Tensor) -> None:
    """Give a linear layer without a bias one, in place."""
    module = model.get_submodule(name)
    weight = getattr(module, "weight")  # noqa: B009 - a linear layer
    module.register_parameter("bias", nn.Parameter(numbers.to(weight), requires_grad=bool(weight.requires_grad)))
