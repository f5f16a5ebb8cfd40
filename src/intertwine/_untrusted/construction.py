"""Building a model from untrusted settings: stopped when it grows too large, before memory is taken."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils.weak import WeakIdKeyDictionary

from .._memory import free_bytes, readable
from ..errors import CheckpointError


@contextmanager
def limited_construction(name: str, most: int = 300_000) -> Iterator[None]:
    """Stop what is built in the block as soon as its tensors exceed free memory, or its modules any reasonable number.

    Layers ask for memory and fill it later, after they have registered their parameters; on the meta device they never
    do. So the sum is taken as they register.

    Args:
        name: Name of what is built, in messages.
        most: Most modules and tensors that it may have; a network of 10,000 layers has fewer than 300,000.

    Raises:
        CheckpointError: If it is too large.
    """  # noqa: DOC501 - other errors pass through
    free, alive, needed, modules = free_bytes(), WeakIdKeyDictionary(), 0, 0

    def count(module: nn.Module, key: str, tensor: Tensor | None) -> None:
        nonlocal needed
        if tensor is None or tensor in alive:
            return
        alive[tensor] = None
        needed += tensor.nbytes
        if needed > free:
            needed = sum(kept.nbytes for kept in alive)  # without what was replaced in between
        if needed > free:
            raise CheckpointError(
                f"{name} must fit in memory. Got one that needs {readable(needed)} or more where {readable(free)} are "
                "free. Check its sizes."
            )

        check_number(len(alive))

    def count_module(module: nn.Module, key: str, child: nn.Module | None) -> None:
        nonlocal modules
        modules += 1
        check_number(modules)

    def check_number(number: int) -> None:
        if number > most:
            raise CheckpointError(f"{name} must have at most {most:,} modules and tensors. Got more. Check its depth.")

    handles = [
        torch_modules.register_module_parameter_registration_hook(count),
        torch_modules.register_module_buffer_registration_hook(count),
        torch_modules.register_module_module_registration_hook(count_module),
    ]
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):  # the allocator was asked first
            raise CheckpointError(
                f"{name} must fit in memory. Got one that does not, where {readable(free)} are free. Check its sizes."
            ) from None
        raise
    finally:
        for handle in handles:
            handle.remove()
