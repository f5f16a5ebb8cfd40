"""Table 3: what the negative slope of LeakyReLU costs a ResNet20."""

from ...zoo import Zoo
from ..estimates import Estimate, mean_of, of_runs
from ..experiment import Experiment, Measured, Setting, trained_from
from ..printed import TABLE_3
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim
from ..zoos import trained_words, zoo_for

SLOPES = tuple(float(name.split()[1]) for name in TABLE_3)
_COUNT = 2  # networks for each slope, as in the paper
_FEW = (1e-2, 0.1, 0.5, 0.9, 1.0)  # at the scale small
_GROUP = "test accuracy, percent"
_EQUAL = 3.0  # points


def slopes_at(setting: Setting) -> tuple[float, ...]:
    """The slopes of this scale: three slopes that are nearly 0 say one thing."""
    return setting.by_scale(SLOPES, _FEW, SLOPES)


def zoo_of_slope(setting: Setting, slope: float) -> Zoo:
    """The networks of one slope, trained unless they are there."""
    base = setting.by_scale("mlp:widths=16-16-16", "resnet20:width=8", "resnet20")
    spec = f"{base}{',' if ':' in base else ':'}leaky_slope={slope:g}"
    return zoo_for(setting, spec, setting.by_scale(_COUNT, 6, _COUNT))


def _measure(setting: Setting) -> Measured:
    zoos = {slope: zoo_of_slope(setting, slope) for slope in slopes_at(setting)}
    if setting.planned is not None:
        return Measured()
    names = dict(zip(SLOPES, TABLE_3))
    rows = [
        Row.of(names[slope], of_runs(zoo.accuracies).times(100), TABLE_3[names[slope]], _GROUP)
        for slope, zoo in zoos.items()
    ]
    note = "A linear network does well on digits: what slope 1 costs shows on CIFAR-10."
    return Measured(rows, [trained_words(zoos[0.01]), *([note] if setting.scale == "smoke" else [])])


def _judge(found: Reproduction) -> list[Claim]:
    by = found.table.get(_GROUP, {})
    small = {name: by[name] for name, slope in zip(TABLE_3, SLOPES) if slope <= 0.1 and name in by}
    reached = {name: e.times(0.01) for name, e in small.items()}  # of the networks that should train
    networks = Trained(reached or {"networks": Estimate(float("nan"))}, trained_from(found))
    usual = mean_of(small.values())
    steps = {"0.1 to 0.5": usual - by["slope 0.5"], "0.5 to 0.9": by["slope 0.5"] - by["slope 0.9"],
             "0.9 to 1": by["slope 0.9"] - by["slope 1"]}  # fmt: skip
    return [
        claim("slopes up to 0.1 are equally good, within 3 points",
              {name: e - usual for name, e in small.items()}, above=-_EQUAL, below=_EQUAL, trained=networks),
        claim("beyond 0.1 accuracy falls with the slope", steps, above=0, trained=networks),
        claim("a linear network (slope 1) is far worse: by more than 20 points",
              {"slopes up to 0.1 - slope 1": usual - by["slope 1"]}, above=20, trained=networks),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment(
        "table3-leaky-slopes", "Accuracy against the negative slope", "v2 Table 3 (v1 Table 1)", _measure, _judge
    ),
)
