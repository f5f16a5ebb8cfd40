"""Single blocks removed from a ResNet against single layers removed from a VGG (paper 2, section 3.1.3).

Theorem 3.3 reads a residual network as an ensemble of the ``2^b`` networks that keep or ignore each of its blocks. The
paper cites what Veit et al. (arXiv:1605.06431) saw: without one block a trained ResNet goes on working, without one
layer a VGG does not. The paper prints no numbers of its own.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ...._evaluation import copied
from ....merging.recalibrate import recalibrate_
from ...data import load
from ...networks.resnet import BasicBlock, ResNet
from ...runs import Job
from ...training import RECIPES, accuracy, choose_device, load_checkpoint
from ..estimates import Estimate, mean_of, of_runs
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, trained, trained_words, zoo_for

_CHEAP = 0.05  # 5 points
_AGAIN = ", batch norm measured anew"


def removable(model: nn.Module) -> dict[str, bool]:
    """What can be taken out of a network, and whether the network's shapes change there.

    Args:
        model: A ResNet or a flat network ``conv1, bn1, relu1, ...`` such as ``vgg16``.

    Returns:
        Residual blocks, whose shortcut stays; or convolutions with as many outputs as inputs, which go with their batch
        norm and ReLU. The value says whether a block's shortcut changes the shape; no layer's does.

    Raises:
        TypeError: If the network is neither.

    Examples:
        >>> from intertwine.lab.networks import build
        >>> [name for name, changes in removable(build("resnet20")).items() if changes]
        ['layer2.0', 'layer3.0']
        >>> list(removable(build("vgg16")))
        ['conv2', 'conv4', 'conv6', 'conv7', 'conv9', 'conv10', 'conv11', 'conv12', 'conv13']
    """
    if isinstance(model, ResNet):
        blocks = {name: m for name, m in model.named_modules() if isinstance(m, BasicBlock)}
        return {name: not isinstance(block.shortcut, nn.Identity) for name, block in blocks.items()}
    if isinstance(model, nn.Sequential):
        layers = {name: m for name, m in model.named_children() if isinstance(m, nn.Conv2d)}
        return {name: False for name, m in layers.items() if m.in_channels == m.out_channels and m.stride == (1, 1)}
    raise TypeError(f"model must be a ResNet or a flat network of this package. Got {type(model).__name__}.")


def without(model: nn.Module, part: str) -> nn.Module:
    """A copy of a network without one block or layer.

    Args:
        model: As for ``removable``; not changed.
        part: One of its names: ``x -> relu(shortcut(x))`` is left of a block, the identity of a layer.

    Raises:
        ValueError: If the part cannot be removed.
    """
    if part not in removable(model):
        raise ValueError(f"part must be one of {', '.join(removable(model))}. Got {part!r}.")
    twin: Any = copied(model)
    if isinstance(twin, nn.Sequential):
        number = part.removeprefix("conv")
        for kind in ("conv", "bn", "relu"):
            setattr(twin, f"{kind}{number}", nn.Identity())
        return twin
    parent, _, last = part.rpartition(".")
    block: Any = twin.get_submodule(part)
    setattr(twin.get_submodule(parent), last, nn.Sequential(block.shortcut, block.relu2))
    return twin


class Removals(Job):
    """One trained network, every removable part taken out in turn."""

    gpus: ClassVar[float] = 0.25

    checkpoint: str  # The network
    data: str  # As ``lab.data.load`` takes it
    measured: int  # Training examples that batch norm is measured anew on
    tested: int | None  # Test examples; all of them if ``None``
    device: str = "auto"  # Where

    def run(self, files: Path) -> dict[str, Any]:
        """Remove and test.

        Returns:
            The ``whole`` network's accuracy, and for each part its accuracy ``without`` it, and ``measured`` anew.
        """
        data, device = load(self.data).first(self.measured), choose_device(self.device)
        model = load_checkpoint(self.checkpoint).to(device)
        train, test = data.loader("train"), data.loader("test", examples=self.tested)
        found: dict[str, Any] = {"whole": accuracy(model, test), "without": {}, "measured": {}}
        for part in removable(model):
            twin = without(model, part)
            found["without"][part] = accuracy(twin, test)
            found["measured"][part] = accuracy(recalibrate_(twin, train), test)
        return found


def claims_of(table: Mapping[str, Mapping[str, Estimate]], networks: Trained) -> list[Claim]:
    """What is said of removal.

    Args:
        table: Accuracy lost by network and part; ``"NETWORK, batch norm measured anew"`` with batch norm measured anew.
        networks: Those that parts were removed from.
    """
    told = partial(claim, trained=networks)
    resnet, vgg = (next(g for g in table if g.startswith(kind)) for kind in ("resnet", "vgg"))
    average = lambda again: mean_of(table[vgg + again].values()) - mean_of(table[resnet + again].values())
    blocks, layers = table[resnet], table[vgg]
    mildest, worst = min(layers, key=lambda k: layers[k].value), max(blocks, key=lambda k: blocks[k].value)
    pairs = {f"{mildest} - {block}": layers[mildest] - e for block, e in blocks.items()}
    pairs |= {f"{layer} - {worst}": e - blocks[worst] for layer, e in layers.items()}
    return [
        told(
            "removing a layer of a VGG costs more than removing a block of a ResNet, mean over parts",
            {f"{vgg} - {resnet}": average("")},
            above=0,
        ),
        told("even the mildest layer costs more than the worst block", pairs, above=0),
        told(
            "most blocks of a ResNet can go for less than 5 points each",
            blocks,
            below=_CHEAP,
            but=(len(blocks) - 1) // 2,
        ),
        told("with batch norm measured anew the order is the same", {f"{vgg} - {resnet}": average(_AGAIN)}, above=0),
    ]


def _measure(setting: Setting) -> Measured:
    specs = setting.by_scale(("resnet20:width=4", "vgg16:width=4"), ("resnet20:width=8", "vgg16:width=16"),
                             ("resnet110", "vgg16"))  # fmt: skip
    recipe = RECIPES["vgg_resnet"] if setting.scale == "paper" else None
    zoos = {spec.partition(":")[0]: zoo_for(setting, spec, setting.by_scale(2, 6, 5), recipe) for spec in specs}
    jobs = [
        Removals(checkpoint=str(member.path.resolve()), data=setting.data_spec,
                 measured=setting.by_scale(500, 1000, 10_000), tested=setting.by_scale(None, 1000, None),
                 device=setting.device)
        for zoo in zoos.values()
        for member in zoo.members
    ]  # fmt: skip
    values = iter(setting.run(jobs))
    rows = accuracy_rows(zoos)
    for net, zoo in zoos.items():
        found = [next(values) for _ in zoo.members]
        rows += [
            Row.of(part, of_runs(v["whole"] - v[how][part] for v in found), group=net + again)
            for how, again in (("without", ""), ("measured", _AGAIN))
            for part in found[0][how]
        ]
    notes = [
        f"Accuracy lost by removal at test time, 0.01 is a point, without any training afterwards. "
        f"{'; '.join(map(trained_words, zoos.values()))}. Paper 2 cites it (Veit et al. 2016) and prints no numbers.",
        "Of a block its shortcut and last ReLU stay; of a VGG convolutions with as many outputs as inputs are removed, "
        "with batch norm and ReLU. Veit et al. remove one of 54 blocks.",
    ]
    return Measured(rows, notes)


def _judge(found: Reproduction) -> list[Claim]:
    return claims_of(found.table, trained(found))


EXPERIMENTS = (
    Experiment(
        "p2-block-removal", "Blocks removed from a ResNet, layers from a VGG", "paper 2, Theorem 3.3", _measure, _judge
    ),
)
