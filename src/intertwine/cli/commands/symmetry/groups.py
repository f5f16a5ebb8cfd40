"""``intertwine groups``: what activations let through."""

from dataclasses import dataclass

from ..._options import Options, argument, option


@dataclass(frozen=True)
class GroupsOptions(Options):
    """Show the intertwiner groups of activations: the matrices A with sigma(A x) = phi(A) sigma(x).

    Without names, the table of all known activations. A function of your own is measured in float64; the residual says
    how well the laws hold that were accepted, the margin how clearly the others fail.

    Example:
      intertwine groups
      intertwine groups relu gelu leaky_relu:0.1 --dim 64
      intertwine groups mypackage.activations:my_sigma
    """

    activations: list[str] | None = argument(
        None, "Name (relu, leaky_relu:0.1, swiglu) or module:function of any scalar function.", metavar="ACTIVATION"
    )
    dim: int | None = option(None, "Number of channels, to see the group's dimension.", min=1)
    as_json: bool = False
