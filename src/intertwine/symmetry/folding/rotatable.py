"""The symmetry of a folded network whose streams may rotate: norms without gains see lengths alone."""

from dataclasses import replace

import torch

from ...programs import Program, Ref
from ...programs.operations import LAYER_NORMS, RMS_NORMS
from ..find import symmetries_of
from ..symmetry import Symmetry
from .norms import Norm, norms
from .rewriter import Rewriter


def rotatable(rewriter: Rewriter) -> tuple[Symmetry, frozenset[str]]:
    """The symmetry once every norm of gain one and bias zero divides by a length, as it does in any rotated basis.

    A layer norm takes the mean as well, which is kept where ``Q 1 = 1``.

    Returns:
        The symmetry, in which streams are orthogonal spaces, and the spaces of which a layer norm may take the mean:
        their elements keep the network's function where they keep the vector of ones.
    """
    sites = [norm for norm in norms(rewriter.graph) if _is_plain(rewriter, norm)]
    sym = symmetries_of(_without_gains(rewriter.program, sites))
    return sym, _centred(sym, rewriter.program)


def _is_plain(rewriter: Rewriter, norm: Norm) -> bool:
    """Whether a norm multiplies by ones and adds zeros."""
    bias = norm.bias
    shifts = bias is not None and bool((rewriter.graph.state[bias.parameter].flatten()[bias.entries] != 0).any())
    return bool((norm.gain.numbers == 1).all()) and not shifts


def _without_gains(program: Program, sites: list[Norm]) -> Program:
    """The run with norms that neither multiply nor add, and layer norms that take no mean: rotations keep it."""
    calls = list(program.calls)
    for norm in sites:
        call = calls[norm.position]
        if call.op == "aten::mul":
            first, second = call.args["self"], call.args["other"]
            same = [r for r in (first, second) if _shape(program, r) == _shape(program, norm.out)]
            calls[norm.position] = replace(
                call, op="aten::alias", args={"self": same[0]}, func=torch.ops.aten.alias.default
            )
    for position, call in enumerate(calls):
        weights = [call.args.get("weight"), call.args.get("bias")]
        plain = position in {norm.position for norm in sites} or weights == [None, None]
        if call.op in LAYER_NORMS | RMS_NORMS and plain:
            args = {"input": call.args["input"], "normalized_shape": call.args["normalized_shape"], "weight": None}
            outputs = (call.outputs[0], *(None for _ in call.outputs[1:]))
            calls[position] = replace(call, op="aten::rms_norm", args=args, outputs=outputs)
    return replace(program, calls=tuple(calls))


def _shape(program: Program, ref: Ref) -> tuple[int, ...]:
    return program.values[ref.id].shape


def _centred(sym: Symmetry, program: Program) -> frozenset[str]:
    """Spaces of which a layer norm of the model may take the mean: those of the size of one."""
    sizes = {call.args["normalized_shape"][-1] for call in program.calls if call.op in LAYER_NORMS}
    return frozenset(space.name for space in sym.spaces if space.size in sizes)
