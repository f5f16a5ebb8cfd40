"""Single blocks removed from a ResNet against single layers removed from a VGG (paper 2, section 3.1.3).

Theorem 3.3 reads a residual network as an ensemble of the ``2^b`` networks that keep or ignore each of its blocks. The
paper cites an observation of Veit et al. (arXiv:1605.06431): a trained ResNet still works without one block, a VGG does
not without one layer. The paper prints no numbers of its own.
"""

from pathlib import Path
from typing import Any

from ....features.evaluate import evaluate
from ....merging.repair import recalibrate_
from ...data import load
from ...networks import removable, without
from ...statistics import independent
from ...training import RECIPES, accuracy, choose_device, load_checkpoint
from ..experiment import Experiment, Findings
from ..plan import DataJob, Design, row

_CHEAP = 0.05  # 5 points
_ANEW = ", batch norm measured anew"


class Removals(DataJob):
    """One trained network, with every removable part taken out in turn."""

    checkpoint: str  # The network
    measured: int  # Training examples on which batch norm is recalibrated

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows for each part: accuracy lost and test loss without it, both also with batch norm recalibrated."""
        data, device = load(self.data).first(self.measured), choose_device(self.device)
        model = load_checkpoint(self.checkpoint).to(device)
        train, test, rows = data.loader("train"), data.loader("test"), list[dict[str, Any]]()
        whole = accuracy(model, test)
        for part in removable(model):
            twin = without(model, part)
            for how in ("", _ANEW):
                found = evaluate(recalibrate_(twin, train) if how else twin, test)
                cost = whole - (found.accuracy or 0.0)
                rows.append(row(f"cost{how}", cost, layer=part, images=len(data.test)))
                rows.append(row(f"loss{how}", found.loss, layer=part))
        return rows


def _plan(plan: Design) -> None:
    s = plan.setting
    specs = s.by_scale(("resnet20:width=4", "vgg16:width=4"), ("resnet20:width=8", "vgg16:width=16"),
                       ("resnet110", "vgg16"))  # fmt: skip
    recipe = RECIPES["vgg_resnet"] if s.scale == "paper" else None
    for spec in specs:
        zoo = plan.zoo(spec.partition(":")[0], spec, s.by_scale(2, 8, 5), recipe)
        for member in zoo.members:
            job = Removals(checkpoint=member.path.as_posix(), data=s.data_spec, device=s.device,
                           measured=s.by_scale(500, 1000, 10_000))  # fmt: skip
            plan.add(job, zoo.arm, member.name)
    plan.baseline()
    plan.note(
        "Accuracy lost by removal at test time, without any training afterwards; 0.01 is a point. Paper 2 cites this "
        "(Veit et al. 2016) and prints no numbers.",
        "A removed block leaves its shortcut and last ReLU. In a VGG, convolutions with as many outputs as inputs are "
        "removed, with their batch norm and ReLU. Veit et al. remove one of 54 blocks.",
    )


def _analyse(found: Findings) -> None:
    resnet, vgg = (next(a for a in found.values.arms("cost") if a.startswith(kind)) for kind in ("resnet", "vgg"))
    blocks, layers = (found.values.by_layer("cost", arm) for arm in (resnet, vgg))
    found.accuracies()
    for how in ("", _ANEW):
        for arm in (resnet, vgg):
            found.show(f"{arm}{how}", found.values.by_layer(f"cost{how}", arm))
    guard = found.guard(resnet, vgg)
    mean = lambda how, arm: found.values.averaged(f"cost{how}", arm)
    average = lambda how: independent((1, mean(how, vgg)), (-1, mean(how, resnet)))
    # All pairs: which layer is the mildest, and which block the worst, is uncertain too.
    pairs = {f"{k} - {j}": independent((1, one), (-1, two)) for k, one in layers.items() for j, two in blocks.items()}
    found.state("removing a layer of a VGG costs more than removing a block of a ResNet, mean over parts",
                {f"{vgg} - {resnet}": average("")}, above=0, guard=guard)  # fmt: skip
    found.state("even the mildest layer costs more than the worst block", pairs, above=0, guard=guard)
    found.state("most blocks of a ResNet can go for less than 5 points each", blocks, below=_CHEAP,
                but=(len(blocks) - 1) // 2, guard=guard)  # fmt: skip
    found.state("with batch norm measured anew the order is the same", {f"{vgg} - {resnet}": average(_ANEW)}, above=0,
                guard=guard)  # fmt: skip


_TITLE = "Blocks removed from a ResNet, layers from a VGG"
EXPERIMENTS = (Experiment("p2-block-removal", _TITLE, "paper 2, Theorem 3.3", _plan, _analyse),)
