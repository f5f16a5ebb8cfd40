"""The interpretable gauge of a network: gains of one, biases pushed on, weights without what a norm's mean removes.

Bases of heads: the singular vectors of the maps that pass through their values, or through queries and keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from ..._result import UNSAVED, Result, of_networks
from ..._words import counted
from ...errors import VerificationError
from ..action import moved
from ..find import symmetries_of
from ..gauge.bases import general_bases
from ..proof import Proof
from ..transformation import element
from .norms import fold_norms
from .offsets import centre, push_biases
from .rewriter import Outcome, Rewriter


@dataclass(frozen=True)
class Kept:
    """A tensor that stays as it is: its name, and why it cannot be folded."""

    tensor: str
    reason: str


_NOTHING = "nothing to fold: gains are one, biases zero and streams centred, or kept for the reasons below"


@dataclass(frozen=True, repr=False)
class Fold(Result):
    """The result of ``fold``.

    Attributes:
        changed: Every tensor that has other numbers, with the steps that changed it (``"norms"``, ``"biases"``,
            ``"center"``, ``"heads"``).
        kept: Gains and biases that stay, and why.
        added: Tensors that the folded model has more: weights that were tied, biases that were not there.
        proof: The new function against the old one in float64, with a control that must fail.
        certified: For which inputs the function is the same, in words.
        model: The folded model, of the same class.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        >>> _ = nn.init.normal_(net[0].weight)
        >>> x = torch.randn(5, 4)
        >>> found = fold(net, x)
        >>> bool((found.model[0].weight == 1).all()), torch.allclose(found.model(x), net(x), atol=1e-5)
        (True, True)
    """

    changed: dict[str, tuple[str, ...]]
    kept: tuple[Kept, ...]
    added: tuple[str, ...]
    proof: Proof
    certified: str
    model: Any = field(default=None, metadata=UNSAVED)

    def summary(self) -> str:
        """How much was changed, the proof, and what stays as it is."""
        proof = self.proof
        said = f"function kept to {proof.error:.1e} (negative control {proof.control:.1e})"
        lines = [f"{counted(len(self.changed), 'tensor')} changed, {said}" if self.changed else _NOTHING]
        lines += [f"added: {name}" for name in self.added]
        lines += [f"kept: {kept.tensor}: {kept.reason}" for kept in self.kept]
        return "\n".join([*lines, f"certified for {self.certified}"])

    _columns = ("tensor", "steps", "added", "kept")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per tensor that was changed or kept."""
        changed = [(n, ", ".join(steps), n in self.added, "") for n, steps in self.changed.items()]
        kept = [(kept.tensor, "", False, kept.reason) for kept in self.kept]
        return [dict(zip(self._columns, row)) for row in (*changed, *kept)]


@of_networks("model")
def fold(
    model: nn.Module,
    example_inputs: Any,
    norms: bool = True,
    center: bool = True,
    biases: bool = True,
    *,
    heads: bool = False,
    extend: bool | Literal["ties"] = True,
    strict: bool = False,
) -> Fold:
    r"""The same function in an interpretable gauge: gains of one, biases pushed on, weights without invisible parts.

    Changes are carried through the recorded run, so that any architecture can be folded and nothing is assumed about
    names. With ``n`` the normalised features, ``g`` a gain and ``b`` a bias, every linear map that reads ``g n + b``
    becomes ``W diag(g)`` with the bias ``c + W b`` (an element of the group of scales where no gain is zero). Biases of
    values pass attention, whose rows sum to one, into the bias after it; biases that softmax ignores vanish. Where all
    that reads a stream subtracts its mean, what is written is centred, and so is what reads the centred features.

    Args:
        model: The model. It is left as it is.
        example_inputs: See ``symmetries``.
        norms: Fold the gains of layer norms and RMS norms.
        center: Centre what is written to layer norms, and what reads their features.
        biases: Fold the biases of layer norms, and push biases of values on.
        heads: Bring every head's values (and queries and keys where nothing else ties them) into balanced bases: the
            singular vectors of what they pass, largest first, which no rotation of the head changes.
        extend: Untie weights and add biases to linear layers where a fold needs that. The modules stay of the same
            classes, but the state dict has more names (``Fold.added``): ``save_pretrained`` refuses where the class
            would not build them. ``"ties"`` unties only, which every class of transformers can hold.
        strict: Fail if anything that was asked for cannot be folded.

    Returns:
        The folded model, what was changed and what could not be, with the numerical proof.

    Raises:
        ValueError: If nothing of a step that was asked for can be folded, or with ``strict`` not all, naming the
            obstacle; if the weights are not real numbers.
        VerificationError: If the function changed.

    Examples:
        >>> import intertwine as iw
        >>> block = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2))
        >>> folded = fold(block, torch.randn(5, 3))
        >>> iw.testing.assert_same_function(block, folded.model, torch.randn(5, 3))
        >>> folded.changed["0.bias"], bool((folded.model[1].weight == 1).all())
        (('center',), True)

    References:
        - N. Nanda and J. Bloom, TransformerLens, 2022: ``fold_ln``, ``center_writing_weights``, ``fold_value_biases``.
    """  # noqa: DOC502 - raised by what it calls
    rewriter = Rewriter(model, example_inputs, bool(extend), biases=extend is True)
    steps: dict[str, tuple[bool, Callable[[], Outcome]]] = {
        "norms": (norms or biases, lambda: fold_norms(rewriter, norms, biases)),
        "biases": (biases, lambda: push_biases(rewriter)),
        "center": (center, lambda: centre(rewriter)),
        "heads": (heads, lambda: _balance_heads(rewriter)),
    }
    changed: dict[str, tuple[str, ...]] = {}
    outcome = Outcome()
    for name, (wanted, step) in steps.items():
        if not wanted:
            continue
        before, made = rewriter.graph.state, step()
        outcome.done |= made.done
        outcome.kept += made.kept
        for tensor, now in rewriter.graph.state.items():
            if tensor not in before or not torch.equal(before[tensor], now):
                changed[tensor] = (*changed.get(tensor, ()), name)
    _refuse(outcome, list(steps), strict)
    kept = tuple(Kept(tensor, reason) for _, tensor, reason in outcome.kept)
    proof = rewriter.prove()
    return Fold(changed, kept, tuple(rewriter.added), proof, rewriter.certified, rewriter.finished())


def folded(model: nn.Module, example_inputs: Any) -> nn.Module:
    """A network as ``fold`` leaves it: itself where nothing can be folded without a change of its function."""
    try:
        return fold(model, example_inputs).model
    except (ValueError, VerificationError):
        return model


def _refuse(outcome: Outcome, steps: list[str], strict: bool) -> None:
    """Refuse a fold of which a step did nothing of what it was asked for, or with ``strict`` not all."""
    for step in steps:
        left = [(tensor, reason) for name, tensor, reason in outcome.kept if name == step]
        if left and (strict or step not in outcome.done):
            reasons = "; ".join(f"{tensor}: {reason}" for tensor, reason in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ValueError(f"{step} must be foldable. Got {reasons}{more}. Leave the step out: {step}=False.")
    if not outcome.done:
        raise ValueError("model must have norms or biases that can be folded. Got none that is not folded already.")


def _balance_heads(rewriter: Rewriter) -> Outcome:
    """Bring every general linear space of the network into its balanced basis, an element of its symmetry group."""
    sym = symmetries_of(rewriter.program)
    g = element(sym, linear=general_bases(sym, rewriter.graph.state))
    new = moved(sym, g, rewriter.graph.state)
    rewriter.write(new)
    rewriter.reread()
    return Outcome({"heads"} if new else set())
