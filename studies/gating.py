"""Two open ends of paper 2, section 3.3: ReLUs in the gating network, and its depth.

1. DGN and DLGN differ only by the ReLUs of the gating network, and 2 points of accuracy lie between them. Does width
   close the gap?
2. Linear gating networks compute no more in many layers than in one, yet a deep one is said to be about 6 points better
   than single maps (DLGN-SF). Is it, at other depths of the value network? (VGG-16, the paper's case: p2-table3.)

Fully connected networks, which learn CIFAR-10 in minutes. C4GAP on digits cannot tell: there, logistic regression does
as well.
"""

from intertwine.lab.experiments import Design, Experiment, Findings
from intertwine.lab.networks import gated_spec
from intertwine.lab.statistics import independent

WIDTHS = {"smoke": (16, 64), "small": (32, 128, 512), "paper": (32, 128, 512, 2048)}
DEPTHS, WIDTH = (2, 3, 5), {"smoke": 32, "small": 64, "paper": 512}
POINT = 0.01
LEARNT = 0.3  # fully connected networks of CIFAR-10 images: three times chance


def _enter(plan: Design, arm: str, kind: str, widths: list[int]) -> None:
    """A zoo of one kind: a network, or its counterpart of gates with constant input."""
    base = "mlp:widths=" + "-".join(map(str, widths))
    plan.zoo(arm, gated_spec(kind, base, input="ones") if kind else base, plan.setting.by_scale(2, 8, 8))


def _plan_gap(plan: Design) -> None:
    plan.baseline()
    for width in WIDTHS[plan.setting.scale]:
        for name, kind in (("network", ""), ("DGN(x, 1)", "dgn"), ("DLGN(x, 1)", "dlgn")):
            _enter(plan, f"{name}, width {width}", kind, [width] * 3)


def _analyse_gap(found: Findings) -> None:
    widths = [arm.partition(", width ")[2] for arm in found.values.arms("accuracy") if arm.startswith("network, ")]
    sample = lambda kind, width: found.values.sample("accuracy", f"{kind}(x, 1), width {width}")
    for name in ("network", "DGN(x, 1)", "DLGN(x, 1)"):
        found.show(name, {f"width {w}": found.values.sample("accuracy", f"{name}, width {w}") for w in widths})
    terms = {w: ((1, sample("DGN", w)), (-1, sample("DLGN", w))) for w in widths}
    gaps = {f"width {w}": independent(*both) for w, both in terms.items()}
    found.show("DGN - DLGN", gaps)
    guard = found.guard(*(f"network, width {w}" for w in widths), least=LEARNT)
    found.state("ReLUs in the gating network help at every width", gaps, above=0, guard=guard)
    closed = independent(*terms[widths[0]], *((-c, s) for c, s in terms[widths[-1]]))
    found.state("width closes the gap: in the widest network it is smaller by a point than in the narrowest",
                {"narrowest - widest": closed}, above=POINT, guard=guard)  # fmt: skip
    found.accuracies()


def _plan_depth(plan: Design) -> None:
    plan.baseline()
    for depth in DEPTHS:
        for name, kind in (("deep", "dlgn"), ("single maps", "dlgn_sf")):
            _enter(plan, f"{name}, {depth} layers", kind, [WIDTH[plan.setting.scale]] * depth)


def _analyse_depth(found: Findings) -> None:
    for depth in DEPTHS:
        arms = [f"{name}, {depth} layers" for name in ("deep", "single maps")]
        deep, single = (found.values.sample("accuracy", arm) for arm in arms)
        found.state(f"{depth} layers: a deep linear gating network is better than single maps",
                    {"deep - single maps": independent((1, deep), (-1, single))}, above=0,
                    guard=found.guard(*arms, least=LEARNT))  # fmt: skip
    found.accuracies()


_FROM = "left open by paper 2, section 3.3"
STUDIES = (
    Experiment("open-dgn-dlgn-gap", "The gap between DGN and DLGN by width", _FROM, _plan_gap, _analyse_gap),
    Experiment("open-gating-depth", "The depth of linear gating networks", _FROM, _plan_depth, _analyse_depth),
)
