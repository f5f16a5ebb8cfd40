"""Options of reading features: which tensor of an output, which axis, how many examples, and in how much memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from ._outputs import Selector


@dataclass(frozen=True)
class Reading:
    """How hidden features are read.

    Attributes:
        outputs: Which tensor of a tuple or mapping to read, for all layers or by name; see
            :func:`intertwine.features.layers`.
        channel_dim: Axis of the channels, for all layers or by name, where the guess of
            :func:`intertwine.features.layers` is wrong.
        max_examples: Use this many examples at most.
        memory: Bytes, or text such as ``"4 GiB"``: half for features, half for work. By default half of what is free.
    """

    outputs: Selector | Mapping[str, Selector] | None = None
    channel_dim: int | Mapping[str, int] | None = None
    max_examples: int | None = None
    memory: int | str | None = None
