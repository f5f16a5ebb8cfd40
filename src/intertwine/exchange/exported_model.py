"""A model as other tools see it: its symmetry with gains as parameters, its modules, and a copy for verification."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._examples import run
from .._nested import map_tensors
from .._random import seeded
from ..errors import CaptureError
from ..programs import Program, gains_as_parameters
from ..symmetry import Symmetry, proof, symmetries
from ..symmetry.description import Description
from ..symmetry.find import symmetries_of
from ..symmetry.proof import probed
from .names import with_experts
from .result import Proof


@dataclass(frozen=True)
class Subject:
    """One model."""

    # Its symmetry; if a norm multiplies by ``c + weight``, that of the network with this sum as parameter
    sym: Description
    offsets: Mapping[str, float]  # The constants ``c`` by parameter name
    network: nn.Module | None  # The model, if it still exists
    example: Any  # An example for it
    names: tuple[str, ...]  # Names of all its modules, in its own order, with experts listed singly
    last: frozenset[str] = frozenset()  # Output layers: modules to whose outputs nothing is added
    notes: tuple[str, ...] = ()  # Remarks for the reader

    @property
    def name(self) -> str:
        """The class of the model."""
        return "a model" if self.network is None else type(self.network).__name__

    @property
    def described(self) -> str:
        """The class and size of the model."""
        weights = 0 if self.network is None else sum(p.numel() for p in self.network.parameters())
        return f"{self.name} with {weights:,} weights"


def subject_of(sym: Symmetry, model: nn.Module | None = None, example_inputs: Any = None) -> Subject:
    """The model of a symmetry, by default the one in which it was found; refused if already quantised."""
    network = sym.origin.model if model is None else model
    example = sym.origin.example_inputs if example_inputs is None else example_inputs
    gains: Description = sym
    offsets: dict[str, float] = {}
    if sym.origin.program is not None:
        program, offsets = gains_as_parameters(sym.origin.program)
        gains = symmetries_of(program) if offsets else sym
    if network is not None:
        check_plain(network)
        names = [name for name, _ in network.named_modules() if name]
    else:
        every = [*(name.rpartition(".")[0] for name in sym.layouts), *(tap.partition("#")[0] for tap in sym.features)]
        names = list(dict.fromkeys(every))
    last = frozenset() if sym.origin.program is None else _last(sym.origin.program)
    return Subject(gains, offsets, network, example, tuple(with_experts(gains, names)), last, tuple(_notes(sym)))


def check_plain(network: nn.Module) -> None:
    """Refuse quantised weights before long work."""
    for name, module in network.named_modules():
        kinds = {str(t.dtype) for t in (*module._parameters.values(), *module._buffers.values()) if _is_code(t)}
        if kinds or ".quantized" in type(module).__module__ or hasattr(module, "quant_state"):
            said = f", {', '.join(sorted(kinds))}" if kinds else ""
            raise ValueError(
                f"model must hold plain weights. Got quantised ones in {name or type(network).__name__!r} "
                f"({type(module).__name__}{said}), which scales and rotations would move off their grid. "
                "Load it before quantisation."
            )


def _is_code(tensor: Tensor | None) -> bool:
    """Whether a tensor holds weights as integers or in 8 bits."""
    if tensor is None or tensor.ndim < 2:
        return False
    narrow = tensor.dtype in (torch.int8, torch.uint8, torch.int32)
    return narrow or (tensor.is_floating_point() and tensor.element_size() == 1)


def _last(program: Program) -> frozenset[str]:
    """Modules whose outputs become outputs of the model without adding anything learned on the way."""
    outputs = {ref.id for ref in program.outputs}
    kinds = [value.kind for value in program.values]
    joined: set[int] = set()  # values on which an output depends together with others
    for call in reversed(program.calls):
        made = {ref.id for ref in call.outputs if ref is not None}
        alone = made.isdisjoint(joined)
        if not (alone and made.isdisjoint(outputs)):
            varying = {ref.id for ref in call.inputs if kinds[ref.id] != "constant"}
            if len(varying) == 1 and alone:
                outputs |= varying
            else:
                joined |= varying
    modules = ((tap.partition("#")[0], ref) for tap, ref in program.taps.items())
    return frozenset(
        name for name, ref in modules if ref.id in outputs and (name in program.visible or not program.visible)
    )


def _notes(sym: Symmetry) -> Iterator[str]:
    """Notes on tied weights, and on what an example that takes one path has read."""
    if sym.aliases:
        tied = [f"{alias} is {name}" for alias, name in sym.aliases.items()]
        yield f"tied weights move together: {', '.join(tied[:3])}{', ...' if len(tied) > 3 else ''}"
    if sym.path_only:
        unread = sym.unread
        covered = f"not read by the example: {', '.join(unread[:3])}" if unread else "the example reads every parameter"
        yield f"the path depends on the data; {covered}"


class Proving:
    """The model for numerical verification: the model itself if it can be run, else a small one of its class.

    Attributes:
        subject: The model that is run.
        probe: A float64 copy of it; ``None`` if nothing can be run.
        notes: The reason why nothing can be run.
    """

    def __init__(self, subject: Subject) -> None:
        found = _runnable(subject)
        self.subject = subject if isinstance(found, str) else found
        self.notes = (f"not proved: {found}",) if isinstance(found, str) else ()
        self.probe = None if isinstance(found, str) else probed(found.sym, found.network, found.example)  # type: ignore[arg-type]

    def of_the_model(self, found: proof.Proof) -> Proof:
        """The proof, with the name of the model that was run."""
        return Proof(found.error, found.control, found.rtol, self.subject.described)


def _runnable(subject: Subject) -> Subject | str:
    """The model that can be run, or the reason why none can."""
    network, example = subject.network, subject.example
    if network is None:
        return "the model is gone: give model and example_inputs"
    meta = any(p.is_meta for p in network.parameters())
    if not meta and sum(p.numel() for p in network.parameters()) <= LARGEST:
        return subject
    small = small_model(network, example)
    if small is None:
        return "the model has no weights, and no small one of its class could be built" if meta else subject
    try:
        return subject_of(symmetries(*small), *small)
    except CaptureError as error:
        return f"a small model of its class does not run ({error})"


LARGEST = 30_000_000  # most weights of a network that is run unreduced

_DEPTH = re.compile(r"(^|_)(layers|layer|blocks|depth)$")
_WIDTHS = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    "head_dim": 8, "vocab_size": 64, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "kv_lora_rank": 12,
    "q_lora_rank": 12, "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_HEADS = ("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads")
_DEEPEST = 4


def small_model(model: nn.Module, example_inputs: Any) -> tuple[nn.Module, Any] | None:
    """A small network of the same class with random weights on the CPU, and an example with tokens from its vocabulary.

    ``None`` if its class cannot be built from sizes: the model must carry them as ``config``, as in transformers.
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    for narrow in (True, False):
        settings = copy.deepcopy(config)
        vocabulary = _shrink(settings, narrow)
        try:
            with seeded(0), torch.device("cpu"):
                small = type(model)(settings).float().eval()
                example = map_tensors(example_inputs, partial(_sample, vocabulary=vocabulary))
                with torch.no_grad():
                    run(small, example)
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            continue  # if sizes do not fit together, only reduce the layers
        if sum(p.numel() for p in small.parameters()) <= LARGEST:
            return small, example
    return None


def _shrink(settings: Any, narrow: bool) -> int:
    """Write small sizes into a configuration; returns the vocabulary size."""
    vocabulary = 64
    heads = next((getattr(settings, key) for key in _HEADS if hasattr(settings, key)), None)
    shared = getattr(settings, "num_key_value_heads", None) != heads  # several query heads per key/value head
    most = {**_WIDTHS, **dict.fromkeys(_HEADS, 4), "num_key_value_heads": 2 if shared else 4}
    for key, value in list(vars(settings).items()):
        if hasattr(value, "to_dict"):
            vocabulary = _shrink(value, narrow)
        elif isinstance(value, bool) or key.startswith("_"):
            continue
        elif isinstance(value, int) and _DEPTH.search(key):
            setattr(settings, key, min(value, _DEEPEST))
        elif isinstance(value, list) and key in ("layer_types", "mlp_layer_types"):
            setattr(settings, key, value[:_DEEPEST])
        elif narrow and isinstance(value, int) and key in most:
            setattr(settings, key, min(value, most[key]))
        elif key in ("pad_token_id", "bos_token_id", "eos_token_id") and narrow:
            setattr(settings, key, None)
    known = getattr(settings, "vocab_size", None)
    return known if isinstance(known, int) else vocabulary


def _sample(tensor: Tensor, vocabulary: int) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape)
    if tensor.dtype == torch.bool:
        return torch.ones(tensor.shape, dtype=torch.bool)
    return torch.randint(vocabulary, tensor.shape)
