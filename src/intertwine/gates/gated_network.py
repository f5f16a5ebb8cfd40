"""Gated networks: one network makes the gates, another has its ReLUs replaced by products with them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._evaluation import copied, evaluating
from .relu_program import check_batch_norms, departures, is_plain, tolerance
from .substitution import Applied, Read

_TRIALS = 4


class GatedNetwork(nn.Module):
    """A deep gated network: ``y = <phi(x), v>`` with gates from one network and weights in another (P2 section 2.2.2).

    The value network is affine in its input once the gates are fixed. With batch norm in training mode it is not, so
    ``y = <phi, v>`` holds in evaluation mode only; the paper trains it with batch norm all the same. :meth:`check`
    verifies this on an example: nonlinearities other than ReLUs, in whatever form, are refused at the first call.

    Args:
        gating: Maps inputs to a list, in the order in which the value network's ReLUs and max poolings run:
            pre-activations for ReLUs, positions taken for poolings.
        value: The network whose ReLUs become ``q * gate``.
        gate: ``"soft"``: ``sigmoid(beta q)``, which passes gradients to the gates; ``"hard"``: ``1{q > 0}``, which
            passes none, so the gating network stays as it is, whether ``frozen`` or not.
        beta: Steepness of soft gates.
        input: Input of the value network: ``"x"`` or ``"ones"``.
        permutation: The value network's k-th ReLU uses the gates of layer ``permutation[k]``.
        frozen: Whether the gating network is not trained and stays in evaluation mode.

    Raises:
        ValueError: If an option is unknown.
    """

    makes_own_gates = False  # the signs of the value network's features are not its gates

    def __init__(
        self, gating: nn.Module, value: nn.Module, *, gate: str = "soft", beta: float = 10.0, input: str = "x",
        permutation: Sequence[int] | None = None, frozen: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if gate not in ("soft", "hard"):
            raise ValueError(f'gate must be "soft" or "hard". Got {gate!r}.')
        if input not in ("x", "ones"):
            raise ValueError(f'input must be "x" or "ones". Got {input!r}.')
        if not beta > 0:
            raise ValueError(f"beta must be positive. Got {beta}.")
        if permutation is not None and sorted(permutation) != list(range(len(permutation))):
            raise ValueError(f"permutation must hold each layer's number once. Got {list(permutation)}.")
        self.gating, self.value = gating, value
        self.gate, self.beta, self.input, self.frozen = gate, beta, input, frozen
        self.permutation = None if permutation is None else tuple(permutation)
        self._checked = False
        if frozen:
            gating.requires_grad_(False)
            gating.eval()

    def train(self, mode: bool = True) -> "GatedNetwork":
        """Set the mode; a frozen gating network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.gating.eval()
        return self

    @property
    def is_linear(self) -> bool:
        """Whether the gating network is affine in the input (in evaluation mode), as in a DLGN."""
        return isinstance(self.gating, ShallowFeatures) or (isinstance(self.gating, Features) and self.gating.linear)

    def pre_activations(self, x: Tensor) -> list[Tensor]:
        """Pre-activations of the gating network, layer by layer (and positions that its max poolings took)."""
        if not self._checked and is_plain(x) and len(x) and bool(x[:1].isfinite().all()):
            try:
                self.check(x[:1])
            except RuntimeError:  # torch's own: the model may be made for one size of batches
                self._checked = True
        return self.gating(x)

    def gates(self, x: Tensor) -> list[Tensor]:
        """Gates as the value network uses them, in its own order.

        Raises:
            ValueError: If the permutation has another length.
        """  # noqa: DOC502 - raised by in_order()
        return self.in_order([q if q.dtype == torch.long else self._gate(q) for q in self.pre_activations(x)])

    def in_order(self, found: list[Tensor]) -> list[Tensor]:
        """Outputs of the gating network, in the order of the value network's gates."""
        if self.permutation is None:
            return found
        relus = [i for i, g in enumerate(found) if g.dtype != torch.long]
        if len(relus) != len(self.permutation):
            raise ValueError(f"permutation must have one entry for each of {len(relus)} ReLUs. Got {self.permutation}.")
        moved = list(found)
        for k, source in zip(relus, self.permutation):
            moved[k] = found[relus[source]]
        return moved

    def forward(self, x: Tensor) -> Tensor:
        """The value network's output, gated."""
        return self._gated(self.gates(x), torch.ones_like(x) if self.input == "ones" else x)

    def check(self, example: Tensor) -> None:
        """Check on an example that the network is what its name says; the first call does so too.

        In evaluation mode, the value network must be affine in its input once the gates are fixed, and the gating
        network of a DLGN must be affine in the image.

        Args:
            example: Inputs ``(N, C, *S)``, of which the first is tested.

        Raises:
            ValueError: If one of them is not affine, or gates have another shape than what they gate.
        """  # noqa: DOC502 - raised where it is found
        check_batch_norms(self)
        self._checked = True  # set first, because what follows asks for gates
        device, low = example.device, example.dtype in (torch.bfloat16, torch.float16)
        try:
            twin = copied(self)  # so that nothing of this is left
            for module in twin.modules():
                module._forward_hooks.clear()
            rng = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
            with evaluating(twin), torch.no_grad(), rng, torch.autocast(device.type, enabled=False):
                (twin.float() if low else twin)._check(example.float() if low else example)
        except BaseException:
            self._checked = False
            raise

    def _check(self, example: Tensor) -> None:
        example = example[:1].expand(_TRIALS, *example.shape[1:])
        gates, more = self.gates(example), self.gates(torch.cat([example, example]))
        if fixed := [tuple(a.shape) for a, b in zip(gates, more) if a.shape == b.shape]:
            raise ValueError(
                f"ReLUs must act on activations (N, C, *S). Got one on shape {fixed[0]} for any N, as of weights: "
                "their signs are no gates. Let the model hold what that ReLU gives as a parameter."
            )
        parts = {"the value network, with its gates fixed,": lambda z: [self._gated(gates, z)]}
        if self.is_linear:
            parts["the gating network"] = self.gating
        for name, part in parts.items():
            found = departures(part, example)
            wrong = [k for k, error in enumerate(found) if error > tolerance(example)]
            if wrong:
                at = f" at layer {wrong[0]}" if len(found) > 1 else ""
                raise ValueError(
                    f"{name} must be affine in evaluation mode. Got another function{at} (off by {found[wrong[0]]:.2g} "
                    "of its size): the model computes something nonlinear besides ReLUs and max poolings, such as "
                    "torch.where, amax or a product of activations. Write it with ReLUs, or leave it out."
                )

    def _gated(self, gates: list[Tensor], x: Tensor) -> Tensor:
        """The value network's output with given gates."""
        with Applied(gates) as running:
            out = self.value(x)
        if not running.next:
            raise ValueError(
                "model must have ReLUs, whose places the gates take. Got a model without any: it is linear, and its "
                "gated counterpart would be itself."
            )
        if running.next != len(running.gates):
            raise ValueError(
                f"gating and value networks must have the same gates. Got {len(running.gates)} and {running.next}."
            )
        if not isinstance(out, Tensor):
            raise ValueError(
                f"model must return one tensor (N, outputs). Got {type(out).__name__}. Wrap it in a module that "
                "returns its logits."
            )
        return out

    def extra_repr(self) -> str:
        """The options."""
        names = ("is_linear", "gate", "beta", "input", "permutation", "frozen")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _gate(self, q: Tensor) -> Tensor:
        return torch.sigmoid(self.beta * q) if self.gate == "soft" else (q > 0).to(q.dtype)


def check_hard(model: nn.Module, name: str) -> None:
    """Refuse a gated network with soft gates where gates must be hard; messages call the network ``name``."""
    if isinstance(model, GatedNetwork) and model.gate != "hard":
        raise ValueError(
            f"gates of {name} must be hard: soft gates sigmoid(beta q) change when units are rescaled, so that nothing "
            "made of them is a property of the network. Got soft gates. Build it with gate='hard'."
        )


class Features(nn.Module):
    """The pre-activations of a ReLU network, as a gating network; ``linear`` leaves its ReLUs out: it is affine."""

    def __init__(self, network: nn.Module, linear: bool = False) -> None:
        super().__init__()
        self.network, self.linear = network, linear

    def forward(self, x: Tensor) -> list[Tensor]:
        """Pre-activations and positions taken, in the order in which they come."""
        with Read(self.linear) as seen:
            self.network(x)
        return seen.found


@dataclass(frozen=True)
class ShallowMaps:
    """Linear maps of a DLGN-SF."""

    kernel_size: int = 3  # Window of the convolutions (odd)
    batch_norm: bool = False  # Whether to normalise pre-activations, which stay affine in evaluation mode


SHALLOW_MAPS = ShallowMaps()


class ShallowFeatures(nn.Module):
    """One linear map from the input to each layer of gates: the gating network of a DLGN-SF (P2 section 3.3).

    From an example ``(1, C, *S)`` and the shapes of gates: gates ``(C, *S)`` come from one convolution followed by an
    average to their size, flat gates from one matrix. The paper leaves kernel sizes and strides to its figures.
    """

    def __init__(self, example: Tensor, shapes: Sequence[tuple[int, ...]], maps: ShallowMaps = SHALLOW_MAPS) -> None:
        super().__init__()
        self.shapes = [tuple(s) for s in shapes]
        unfit = [s for s in self.shapes if not s or (len(s) > 1 and len(s) != example.dim() - 1)]
        if unfit or example.dim() > 5:
            raise ValueError(
                f"gates must be flat, or have as many axes as the input {tuple(example.shape[1:])}. Got gates of shape "
                f"{(unfit or self.shapes)[0]}, which no single convolution of the input gives."
            )
        make = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}
        self.maps = nn.ModuleList(
            nn.Linear(math.prod(example.shape[1:]), s[0])
            if len(s) == 1
            else make[len(s)](example.shape[1], s[0], maps.kernel_size, padding=maps.kernel_size // 2)
            for s in self.shapes
        )
        norms = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}
        self.norms = nn.ModuleList(norms[len(s)](s[0]) if maps.batch_norm else nn.Identity() for s in self.shapes)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Pre-activations of every layer."""
        maps = zip(self.maps, self.norms, self.shapes)
        return [norm(self._one(layer, shape, x)) for layer, norm, shape in maps]

    def _one(self, layer: nn.Module, shape: tuple[int, ...], x: Tensor) -> Tensor:
        if len(shape) == 1:
            return layer(x.flatten(1))
        q = layer(x)
        if q.shape[2:] == shape[1:]:
            return q
        average = {2: F.adaptive_avg_pool1d, 3: F.adaptive_avg_pool2d, 4: F.adaptive_avg_pool3d}
        return average[len(shape)](q, shape[1:])  # type: ignore[arg-type]


def gate_permutations(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Every order of layers that gives each layer gates of its own shape: 24 for four equal layers (P2 figures 5, 6).

    Yields:
        Permutations for ``dgn`` and ``dlgn``, the identity first.

    Examples:
        >>> len(list(gate_permutations([(128, 8, 8)] * 4))), list(gate_permutations([(3,), (4,), (3,)]))
        (24, [(0, 1, 2), (2, 1, 0)])
    """
    for order in itertools.permutations(range(len(shapes))):
        if all(shapes[i] == shapes[j] for i, j in enumerate(order)):
            yield order
