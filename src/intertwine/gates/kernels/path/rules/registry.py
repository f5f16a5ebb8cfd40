"""Registry of the rules for second moments of signals: one per operation, by its qualified name."""

from collections.abc import Callable

from .....programs import Call
from .....programs.operations import registering
from ..moments import Signal
from ..tile import Tile

KernelRule = Callable[[Tile, Call, Signal], Signal]

_RULES: dict[str, KernelRule] = {}


def register_kernel_rule(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Teach the path kernel operations: a decorator for a function of the tile, a call and the signal that it reads.

    The rule returns the signal of the call's result. One that is wrong gives a wrong kernel: test it against
    ``iw.gates.paths``.

    Args:
        *ops: Qualified operation names without overload or trailing underscore, such as ``"aten::neg"``.

    Raises:
        ValueError: If a name is not qualified.
    """  # noqa: DOC502 - raised by what it calls
    return registering(_RULES, ops)


def rule_of(call: Call) -> KernelRule | None:
    """The rule of a call's operation, if there is one."""
    return _RULES.get(call.op)
