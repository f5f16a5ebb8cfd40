"""``intertwine fold``, ``rotate``, ``canonical``, ``prune`` and ``transport``: networks rewritten."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ..._words import first_line, read
from .._options import ExampleOptions, advanced, option
from .._outputs import claim, print_json, say, tell, tell_written, write_network
from . import inputs, iw
from .merge import scored

if TYPE_CHECKING:
    from torch import nn

    # the network, its description as text and as JSON, and the recipe on its card
    Rewritten: TypeAlias = tuple[nn.Module, str, dict[str, Any], dict[str, Any]]


class Rewriting(ExampleOptions):
    """Base of a command that rewrites the last network it reads, with new weights for the code of the first."""

    suffixes = (".safetensors", "")
    sizes: ClassVar[str] = ""  # prefix on the card where sizes differ from the architecture's

    a: Path
    out: Path = option("FILE.safetensors, or a folder for a model of transformers.", ..., metavar="PATH")

    @abstractmethod
    def rewrite(self, group: inputs.Group) -> Rewritten: ...

    def __call__(self) -> None:
        claim(self.out, self.reads)
        group = inputs.open_group(self.reads, self, "if given")
        model, text, data, recipe = self.rewrite(group)
        card = group.card({**recipe, "command": self.line})
        card["architecture"] = f"{self.sizes}{card['architecture']}"
        written = write_network(model, self.out, card, self.reads[-1])
        print_json({**data, "written": written}) if self.as_json else say(text)
        tell_written({"written": written})


class Fold(Rewriting):
    """Fold norms into the weights: gains become one, biases move forward, and layer norms get centred inputs.

    Gains and biases of norms go into the linear maps that read them, biases of values through attention into the bias
    after it, and weights that write to layer norms are centred. Prints what was changed, what stays and why, and the
    numerical proof. The function is kept exactly: compare the result with 'intertwine diff'.

    Example:
      intertwine fold hf:gpt2 --out folded.safetensors
      intertwine fold hf:llama --out folded
      intertwine fold a.safetensors --model mypackage.nets:decoder --input-shape 2,16 --tokens 50000 --out b.safetensors
    """

    python = "iw.fold(model, example_inputs).model"

    norms: bool = option("Fold the gains of norms.", True)
    center: bool = option("Centre the weights that write to layer norms.", True)
    biases: bool = option("Fold biases of norms, and push biases of values forward.", True)
    extend: bool = option("Untie weights and, in a .safetensors file, add biases as needed.", True)
    strict: bool = advanced("Fail unless everything can be folded.", False)

    def rewrite(self, group: inputs.Group) -> Rewritten:
        steps = (self.norms, self.center, self.biases)
        extend: Literal[False, "ties"] = self.extend and "ties"  # which a folder's class can hold
        whole = self.extend and self.out.suffix == ".safetensors"
        folded = iw.fold(group.models[0], group.example, *steps, extend=whole or extend, strict=self.strict)
        recipe = {"folded": group.names, "added": list(folded.added)}
        return folded.model, folded.summary(), folded.to_dict(), recipe


class Rotate(Rewriting):
    """Rotate a network's residual stream and the values of its heads, to spread outliers, and keep its function.

    Gains of norms are folded first. Then the residual stream is rotated (R1 of SpinQuant and QuaRot), and so are the
    values of every head (R2). Prints what was rotated, and the numerical proof. The function is kept exactly.

    Example:
      intertwine rotate hf:llama --out rotated
      intertwine rotate hf:llama --stream random --heads none --seed 1 --out rotated.safetensors
    """

    python = 'iw.rotate(model, example_inputs, stream="hadamard", heads="hadamard").model'

    stream: str = option("hadamard (with random signs), random, principal or none.", "hadamard")
    heads: str = option("hadamard, random or none.", "hadamard")
    extend: bool = option("Untie weights as needed.", True)
    seed: int = 0

    def rewrite(self, group: inputs.Group) -> Rewritten:
        stream, heads = (None if how == "none" else how for how in (self.stream, self.heads))
        turned = iw.rotate(group.models[0], group.example, stream, heads, seed=self.seed, extend=self.extend)
        recipe = {"rotated": group.names, "stream": self.stream, "heads": self.heads, "seed": self.seed}
        return turned.model, turned.summary(), turned.to_dict(), recipe


class Canonical(Rewriting):
    """Write the canonical form of a network, which is equal, up to rounding, for all its symmetric copies.

    Scales are chosen to make the weights smallest, units are sorted by a key, signs make an odd statistic positive, and
    batch norms become their evaluation-mode affine map; in that mode the function is kept. To decide whether two
    checkpoints are the same network, use 'intertwine same'.

    Example:
      intertwine canonical a.safetensors --model resnet20 --out canonical.safetensors
    """

    python = "iw.canonical(model, example_inputs)"

    def rewrite(self, group: inputs.Group) -> Rewritten:
        (model,) = group.models
        made = iw.canonical(model, group.example)
        error = iw.testing.function_error(model, made, group.example)
        said = f"canonical form of {group.names[0]}: function kept to {error:.1e}"
        return made, said, {"error": error}, {"canonical form of": group.names}


class Prune(Rewriting):
    """Prune units of a space (channels, hidden units, heads, groups or experts), and write the smaller network.

    Every tensor that carries the space loses the same rows, and sizes in modules and configurations follow. The result
    is proved equal, in float64, to the whole network with these units masked. 'intertwine symmetries' names the spaces.
    Prints how far the outputs on the example move and, with labelled data, loss and accuracy before and after.

    Example:
      intertwine prune a.safetensors --space conv1.weight[0] --units 0-2,5 --out smaller.safetensors
    """

    sizes = "pruned "
    python = 'iw.prune_channels(iw.symmetries(model, x), "conv1.weight[0]", [0, 1, 2, 5], model, x)'

    space: list[str] = option("The space; or several that lose the same units, joined by commas or repeated.", ...)
    units: str = option("The units to keep: numbers and ranges, joined by commas.", ..., metavar="0-2,5")
    examples: int = 2000
    batch_size: int = 250

    def rewrite(self, group: inputs.Group) -> Rewritten:
        (model,), kept = group.models, read("units", "--units", self.units)
        small = iw.prune_channels(iw.symmetries(model, group.example), self.space, kept, model, group.example)
        before, after = (sum(p.numel() for p in one.parameters()) for one in (model, small))
        said = f"{len(kept)} units of {', '.join(self.space)} stay: {after:,} of {before:,} weights"
        moved = iw.testing.function_error(model, small, group.example)
        said += f"\noutputs on the example inputs differ by {moved:.1e} (relative)"
        scores = []
        try:
            scores = scored(group, [("before", model), ("after", small)], self.examples, self.batch_size)
        except (ValueError, IndexError) as error:  # its outputs do not match these labels
            tell(f"Not scored on the data: {first_line(error)}")
        for row in scores:
            right = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.1%}"
            said += f"\n{row['network']}: test loss {row['loss']:.3g}{right}"
        facts = {"space": self.space, "units": kept, "parameters before": before, "parameters": after}
        facts |= {"relative error": moved, "scores": scores}
        recipe = {"pruned": group.names, "space": self.space, "units": self.units}
        return small, said, facts, recipe


class Transport(Rewriting):
    """Write network B with the widths of network A, its units coupled to A's by optimal transport.

    B's function changes where widths differ; where they are equal, B's units are permuted. To merge the two networks,
    use 'intertwine merge --method transport'.

    Example:
      intertwine transport small.safetensors large.safetensors --out brought.safetensors
    """

    python = "iw.merging.transport(a, b, example_inputs).apply(b)"

    b: Path
    model_b: str | None = None
    entropy: float = advanced("Strength of the entropy term that smooths couplings; 0 for exact couplings.", 0.0, min=0)

    def rewrite(self, group: inputs.Group) -> Rewritten:
        one, other = group.models
        brought = iw.merging.transport(one, other, group.example, entropy=self.entropy)
        facts = {"sizes": dict(brought.sizes), "costs": dict(brought.costs)}
        recipe = {"transported": group.names[1], "to": group.names[0]}
        return brought.apply(other), brought.summary(), facts, recipe
