"""Rotations of a network's hidden spaces that spread outliers before quantisation, applied to weights or listed.

In the terms of SpinQuant and QuaRot, R1 rotates the residual stream, once the gains of its norms are folded into the
layers that read them; R2 rotates the values of every head. R3 rotates queries and keys after their rotary embedding,
and R4 the inputs of an MLP's last layer: the operations before these let no rotation through, so they are online.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import in_usual_mode
from .._result import UNSAVED, Result
from .._words import counted
from ..errors import IntertwineError
from ..groups import Orthogonal
from ..groups.sampling import haar, keeping_ones
from ..symmetry import Space, Symmetry
from ..symmetry.action import moved, tensors_of
from ..symmetry.blocks import blocks, carrying
from ..symmetry.description import Description
from ..symmetry.folding.norms import fold_norms, rotatable
from ..symmetry.folding.rewriter import Outcome, Rewriter
from ..symmetry.proof import Proof
from ..symmetry.spaces import Fixed
from ..symmetry.transformation import identity, with_parts
from .exported_model import Proving, Subject
from .names import expression, unnumbered
from .permutations import carriers
from .result import Absent, Entry, Mappings, Place
from .scales import Use, scale_mappings

__all__ = ["hadamard"]


def hadamard(n: int) -> Tensor:
    """A Hadamard matrix ``H H^T = n 1`` of order ``n``.

    Sylvester's doubling of a matrix of order 1, or of one of Paley's: order ``q + 1`` for primes ``q = 3 mod 4``, and
    ``2 (q + 1)`` for primes ``q = 1 mod 4``.

    Returns:
        ``(n, n)``, float64.

    Raises:
        ValueError: If these constructions have none.

    Examples:
        >>> h = hadamard(12)
        >>> bool((h @ h.T == 12 * torch.eye(12)).all())
        True

    References:
        - R. Paley. On orthogonal matrices. Journal of Mathematics and Physics, 1933.
    """
    order = n
    while (core := _paley(order)) is None:
        if order < 1 or order % 2:
            raise ValueError(f'n must have a known Hadamard matrix. Got {n}: give a matrix, or "random".')
        order //= 2
    while len(core) < n:
        core = torch.cat([torch.cat([core, core], 1), torch.cat([core, -core], 1)])
    return core


def _paley(n: int) -> Tensor | None:
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if n % 4 == 0 and _is_prime(n - 1):
        return torch.eye(n).double() + _bordered(_jacobsthal(n - 1), -1)
    q = n // 2 - 1
    if n % 4 == 0 and q % 4 == 1 and _is_prime(q):
        plus, minus = torch.tensor([[[1.0, 1], [1, -1]], [[1, -1], [-1, -1]]]).double()
        return torch.kron(_bordered(_jacobsthal(q), 1), plus) + torch.kron(torch.eye(q + 1).double(), minus)
    return None


def _jacobsthal(q: int) -> Tensor:
    """The matrix ``Q_ij``: 1 if ``i - j`` is a square modulo ``q``, -1 if it is not, 0 if ``i = j``."""
    squares = {x * x % q for x in range(1, q)}
    places = torch.arange(q)
    character = torch.tensor([0] + [1 if x in squares else -1 for x in range(1, q)]).double()
    return character[(places[:, None] - places[None]) % q]


def _bordered(core: Tensor, corner: int) -> Tensor:
    """The core with a row of ones above it and a column of ``corner`` beside it."""
    q = len(core)
    full = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    full[0, 1:], full[1:, 0], full[1:, 1:] = 1, corner, core
    return full


def _is_prime(n: int) -> bool:
    return n > 2 and all(n % d for d in range(2, int(n**0.5) + 1))


Choice = str | Tensor | None
_ORTHOGONAL = 1e-6


@dataclass(frozen=True)
class Rotated:
    """One rotated space: its name, its size, its number of matrices, and ``"stream"`` or ``"heads"``."""

    space: str
    size: int
    matrices: int
    kind: str


@dataclass(frozen=True, repr=False)
class Rotation(Result):
    """The result of ``rotate``.

    Attributes:
        rotated: The rotated spaces.
        kept: Norms whose gain could not be folded, with the reason: streams before them cannot rotate.
        added: Extra tensors of the new model: weights that were tied, and biases that did not exist.
        proof: Comparison of the new function with the old one in float64, with a control that must fail.
        certified: The inputs on which the function is certified to be the same, in words.
        model: The new model, of the same class.
        transformation: The element that was applied after folding.
    """

    rotated: tuple[Rotated, ...]
    kept: tuple[tuple[str, str], ...]
    added: tuple[str, ...]
    proof: Proof
    certified: str
    model: Any = field(default=None, metadata=UNSAVED)
    transformation: Any = field(default=None, metadata=UNSAVED)

    def summary(self) -> str:
        """What was rotated, the proof, and what could not be folded."""
        streams, heads = (sum(r.kind == kind for r in self.rotated) for kind in ("stream", "heads"))
        proof = f"function kept to {self.proof.error:.1e} (negative control {self.proof.control:.1e})"
        lines = [f"{counted(streams, 'stream')} and {counted(heads, 'space')} of heads rotated, {proof}"]
        lines += [f"{r.kind}: {r.space}, {r.matrices} of size {r.size}" for r in self.rotated]
        lines += [f"added: {name}" for name in self.added]
        lines += [f"kept: {tensor}: {reason}" for tensor, reason in self.kept]
        return "\n".join([*lines, f"certified for {self.certified}"])

    _columns = ("space", "size", "matrices", "kind")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per space."""
        return [vars(r) for r in self.rotated]


@in_usual_mode
def rotate(
    model: nn.Module,
    example_inputs: Any,
    stream: Choice = "hadamard",
    heads: Choice = "hadamard",
    *,
    seed: int = 0,
    extend: bool = True,
) -> Rotation:
    r"""Rotate the residual streams (R1 of SpinQuant) and the values of every head (R2): the same function.

    The gains of norms are folded first, since a gain per unit ties a stream to its axes. Then every space with an
    orthogonal group is a stream that may rotate. Layer norms subtract the mean, which is kept if ``Q 1 = 1``:
    ``"hadamard"`` and ``"random"`` matrices are followed there by the reflection that maps ``Q 1`` back to ``1``, so
    that a model with layer norms stays one. Other linear spaces (values of heads, queries and keys without rotary
    embeddings) rotate head by head with the same matrix.

    Args:
        model: The model. It is left as it is.
        example_inputs: See ``symmetries``.
        stream: ``"hadamard"`` (with random signs), ``"random"`` (Haar), ``"principal"`` (the principal axes of
            everything that weights write to the stream or read from it, largest first), an orthogonal ``(n, n)``
            matrix, or ``None``.
        heads: ``"hadamard"``, ``"random"``, a matrix or ``None`` for other linear spaces.
        seed: Seed of random signs and matrices.
        extend: Untie weights if a gain or a rotation needs it; biases rotate with the stream, and none is added.

    Returns:
        The rotated model, what was rotated, and the numerical proof.

    Raises:
        ValueError: If no stream can rotate (the obstacle is named), or no heads; if a matrix is not orthogonal, does
            not fit, or does not keep the vector of ones although a layer norm reads the stream.
        VerificationError: If the function changed.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.RMSNorm(8), nn.Linear(8, 2))
        >>> turned = rotate(model, torch.randn(5, 3))
        >>> iw.testing.assert_same_function(model, turned.model, torch.randn(5, 3))
        >>> [r.kind for r in turned.rotated]
        ['stream']

    References:
        - S. Ashkboos et al. QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs. NeurIPS 2024.
        - Z. Liu et al. SpinQuant: LLM Quantization with Learned Rotations. ICLR 2025.
    """  # noqa: DOC502 - raised by what it calls
    for name, choice in (("stream", stream), ("heads", heads)):
        _check_choice(name, choice)
    rewriter = Rewriter(model, example_inputs, extend, biases=False)  # a stream rotates with its norms' biases
    outcome = fold_norms(rewriter) if stream is not None else Outcome()
    sym, centred = rotatable(rewriter)
    generator = torch.Generator().manual_seed(seed)
    g, rotated = identity(sym), []
    for space in (s for s in sym.spaces if s.group.mixes and not s.group.turns):
        kind = "stream" if space.group.is_orthogonal and not space.parents else "heads"
        choice = stream if kind == "stream" else heads
        if choice is None or space.size < 2:
            continue
        fixes_ones = kind == "stream" and space.name in centred
        if isinstance(choice, str) and choice == "principal":  # eigenvectors of X X^T over all written and read slices
            state = rewriter.graph.state
            rows = (m.read(state) for m in carrying(sym.layouts, space) if m.tensor in state)
            gram = torch.stack([x @ x.mT for x in rows]).sum(0)
            choice = torch.linalg.eigh(gram).eigenvectors.flip(-1).mT
        matrix = _matrix(choice, space, fixes_ones, generator)
        shape = (*g[space.name].permutation.shape, space.size)
        g = with_parts(g, space.name, linear=matrix.expand(shape).clone())
        rotated.append(Rotated(space.name, space.size, g[space.name].permutation[..., 0].numel(), kind))
    kept = tuple((tensor, reason) for _, tensor, reason in outcome.kept)
    if stream is not None and not any(r.kind == "stream" for r in rotated):
        turn = "Turn" if extend else "Let it untie weights (extend=True), or turn"
        flags = "--stream none" if extend else "leave out --no-extend, or say --stream none"
        raise ValueError(
            f"model must have a stream that can rotate. Got {_obstacle(sym, kept)}. {turn} the heads alone, "
            f"and leave the residual stream as it is: stream=None. On the command line: {flags}."
        )
    if not rotated:
        raise ValueError("model must have heads that can rotate. Got no linear space within it.")
    rewriter.write(moved(sym, g, tensors_of(rewriter.work)))
    proof = rewriter.prove()
    return Rotation(tuple(rotated), kept, tuple(rewriter.added), proof, rewriter.certified, rewriter.finished(), g)


def _check_choice(name: str, choice: object) -> None:
    """Refuse a choice that is neither a matrix nor the name of one."""
    if isinstance(choice, Tensor):
        square = choice.ndim == 2 and choice.shape[0] == choice.shape[1] and choice.is_floating_point()
        if not square or not Orthogonal(len(choice)).contains(choice, _ORTHOGONAL):
            raise ValueError(
                f"{name} must be an orthogonal matrix. Got one of shape {tuple(choice.shape)} that is not."
            )
    elif choice not in ("hadamard", "random", None) and (name, choice) != ("stream", "principal"):
        raise ValueError(f'{name} must be "hadamard", "random", a matrix or None. Got {choice!r}.')


def _matrix(choice: str | Tensor, space: Space, fixes_ones: bool, generator: torch.Generator) -> Tensor:
    """The matrix of a space."""
    n = space.size
    if isinstance(choice, Tensor):
        if len(choice) != n:
            raise ValueError(f"matrices must fit {space.name}, of size {n}. Got one of size {len(choice)}.")
        matrix = choice.detach().cpu().double()
        ones = torch.ones(n, dtype=torch.float64)
        if fixes_ones and float((matrix @ ones - ones).abs().max()) > _ORTHOGONAL:
            raise ValueError(
                f"stream must keep the vector of ones, of which a layer norm takes a multiple from {space.name}. Got a "
                'matrix that moves it: give another, "hadamard" or "random".'
            )
        return matrix
    if choice == "hadamard":
        signs = torch.randint(2, (n,), generator=generator).double() * 2 - 1
        matrix = hadamard(n) / n**0.5 * signs
    else:
        matrix = haar(n, generator=generator)
    return keeping_ones(matrix) if fixes_ones else matrix


def _obstacle(sym: Symmetry, kept: tuple[tuple[str, str], ...]) -> str:
    """The reason why no stream can rotate: a gain that stays, or a restriction of the space that most tensors carry."""
    if kept:
        return "; ".join(f"{tensor}: {reason}" for tensor, reason in kept[:3])
    for name, layout in sym.layouts.items():
        match layout.axes:
            case (Fixed(reason="vocabulary"), *_, Fixed() as last):
                returned = "the model returns what it writes: give one that returns logits alone"
                return f"{name}: {returned if last.reason == 'output' else last.reason}"
    carried = Counter(name for layout in sym.layouts.values() for block in blocks(layout) for name in set(block.spaces))
    widest = max((s for s in sym.spaces if not s.parents), key=lambda s: carried[s.name], default=None)
    return "; ".join(widest.reasons) if widest is not None else "no hidden space"


def rotations(subject: Subject, proving: Proving) -> Mappings:
    """The mappings with R1 and R2 and their proofs, and the online rotations with the reason."""
    notes, entries = list(proving.notes), []
    stream = _tried(proving, stream="random", heads=None)
    if isinstance(stream, Rotation):
        for rotated in stream.rotated:
            if any(space.name == rotated.space for space in subject.sym.spaces):
                uses = _uses(subject.sym, subject.sym.space(rotated.space))
                reads = [u for u in uses if not _writes(subject.sym, u)]
                # gains are folded before the stream rotates
                is_gain = lambda u: len(subject.sym.layouts[u.tensor].axes) == 1 and not u.tensor.endswith("bias")
                writes = [u for u in uses if u not in reads and not is_gain(u)]
                entries.append(_entry("R1", subject, writes, reads, stream, proving))
    else:
        notes.append(f"R1: {stream}")
    heads = [m for m in scale_mappings(subject.sym)[0] if m.diagonal]
    turned = _tried(proving, stream=None, heads="random") if heads else "no values of heads that mix freely"
    if heads:
        writes, reads = [use for m in heads for use in m.writes], [use for m in heads for use in m.reads]
        entries.append(_entry("R2", subject, writes, reads, turned, proving))
    if isinstance(turned, str):
        notes.append(f"R2: {turned}")
    absent = tuple(_online(subject))
    document = {
        "fused": [{"rotation": e.kind, "writes": list(e.writes), "reads": list(e.reads)} for e in entries],
        "online": [{"rotation": a.reason[:2], "before": a.pattern, "why": a.reason[4:]} for a in absent],
    }
    return Mappings("", "", tuple(entries), absent, document, notes=tuple(notes))


def _tried(proving: Proving, **choice: str | None) -> Rotation | str:
    """A random rotation of the network, or the reason why there is none."""
    network = proving.subject.network
    if proving.probe is None or network is None:
        return "nothing can be run"
    try:
        return rotate(network, proving.subject.example, **choice)  # type: ignore[arg-type]
    except (ValueError, IntertwineError) as error:
        return str(error)


def _uses(sym: Description, space: Space) -> list[Use]:
    """Every tensor axis that carries a space."""
    return [Use(*at, Fraction(0)) for at in carriers(sym, space)]


def _writes(sym: Description, use: Use) -> bool:
    """Whether a tensor adds to the stream: rows of layers, biases, tables of embeddings."""
    return use.axis == 0 or _is_table(sym, use)


def _entry(
    kind: str, subject: Subject, writes: list[Use], reads: list[Use], made: Rotation | str, proving: Proving
) -> Entry:
    """The entry for one kind of rotation in all layers."""
    sides = [tuple(dict.fromkeys(use.module for use in side)) for side in (writes, reads)]
    patterns = []
    for names in sides:
        grouped: dict[str, list[str]] = {}
        for name in names:
            grouped.setdefault(unnumbered(name), []).append(name)
        patterns.append(tuple(expression(group, [*subject.names, *group]) for group in grouped.values()))
    proof = proving.of_the_model(made.proof) if isinstance(made, Rotation) else None
    return Entry(kind, patterns[0], patterns[1], (Place(sides[0], sides[1]),), proof)


def _online(subject: Subject) -> list[Absent]:
    """Layers whose inputs cannot be rotated in the weights, and outputs that meet another output."""
    found: dict[tuple[str, str], list[str]] = {}
    heads = {parent for space in subject.sym.spaces if not space.group.turns for parent in space.parents}
    for space in subject.sym.spaces:
        lost = next(iter(space.causes("no linear maps")), None)
        uses = _uses(subject.sym, space)
        if lost is None or space.name in heads or any(_is_table(subject.sym, use) for use in uses):
            continue
        why = f"{lost.cause} (a rotary embedding)" if lost.kind == "positions" else lost.cause
        reads = [use.module for use in uses if not _writes(subject.sym, use)]
        kind = "R4" if reads else "R3"
        for module in dict.fromkeys(reads or [use.module for use in uses]):
            key = unnumbered(module), f"{kind}: {re.sub(r'[.][0-9]+', '.#', why)} lets no rotation through"
            found.setdefault(key, []).append(module)
    return [Absent(tuple(m), expression(m, [*subject.names, *m]), why) for (_, why), m in found.items()]


def _is_table(sym: Description, use: Use) -> bool:
    """Whether a tensor is a table of embeddings, whose space is the stream."""
    first, *others = sym.layouts[use.tensor].axes
    return bool(others) and isinstance(first, Fixed) and first.reason == "vocabulary"
