"""Rules of the path kernel by family; importing this package registers them all."""

from . import arithmetic, channels, gating, layers, positions
from .registry import register_kernel_rule, rule_of

__all__ = ["arithmetic", "channels", "gating", "layers", "positions", "register_kernel_rule", "rule_of"]
