"""Gains and biases of norms, folded into the linear maps that read them."""

from functools import partial

import torch
from torch import Tensor

from .flow import Change, Flow
from .norm_parameters import Norm, norms
from .parameter_updates import Obstacle, View
from .rewriter import Outcome, Rewriter


def fold_norms(rewriter: Rewriter, gains: bool = True, biases: bool = True) -> Outcome:
    """Fold what can be folded; tied weights that stand in the way are untied where the rewriter may."""
    while True:
        outcome, tied = _attempts(rewriter, gains, biases)
        if not any(rewriter.untie(obstacle) for obstacle in tied):
            break
    rewriter.settle()
    return outcome


def _attempts(rewriter: Rewriter, gains: bool, biases: bool) -> tuple[Outcome, list[Obstacle]]:
    outcome, tied = Outcome(), []
    sites: dict[str, list[Norm]] = {}
    for norm in norms(rewriter.graph):
        sites.setdefault(norm.gain.view.parameter, []).append(norm)
    for name, group in sites.items():
        bias = next((norm.bias.parameter for norm in group if norm.bias is not None), "")
        wanted = {**({"norms": name} if gains else {}), **({"biases": bias} if biases and bias else {})}
        reasons = dict.fromkeys(wanted, "")
        for plan in dict.fromkeys((tuple(wanted), *((step,) for step in wanted))):
            if not set(plan) <= wanted.keys():
                continue
            try:
                rewriter.attempt(partial(_start, group=group, gain="norms" in plan, bias="biases" in plan))
            except Obstacle as obstacle:
                reasons |= {step: str(obstacle) for step in plan}
                tied.append(obstacle)
                continue
            outcome.done |= set(plan)
            break
        else:
            plan = ()
        outcome.kept += [(step, tensor, reasons[step]) for step, tensor in wanted.items() if step not in plan]
    return outcome, tied


def _start(flow: Flow, *, group: list[Norm], gain: bool, bias: bool) -> None:
    """The results of the norms without their gains, their biases, or both."""
    state = flow.graph.state
    for norm in group:
        g = norm.gain.numbers if gain else torch.ones_like(norm.gain.numbers)
        b = _numbers(state, norm.bias) if bias else torch.zeros_like(g)
        shape = flow.graph.program.values[norm.out.id].shape
        one = norm.gain.one if gain else 0.0
        for position in norm.gain.readers:
            flow.updates.add(norm.gain.view, position, 0.0 if gain else 1.0, one)
        if norm.bias is not None:
            flow.updates.add(norm.bias, norm.position, _factor(state, norm, gain, bias), 0.0)
        flow.put(norm.out, Change(g.expand(shape), b.expand(shape)))


def _factor(state: dict[str, Tensor], norm: Norm, gain: bool, bias: bool) -> Tensor | float:
    # what the bias is multiplied by: it stays inside the change of the gain unless it is folded too
    if bias or not gain:
        return 0.0 if bias else 1.0
    g, b = norm.gain.numbers, _numbers(state, norm.bias)
    if bool(((g == 0) & (b != 0)).any()):
        raise Obstacle(f"{norm.gain.view.parameter} has zeros where the bias has none")
    return torch.where(g == 0, 1.0, 1 / torch.where(g == 0, 1.0, g))


def _numbers(state: dict[str, Tensor], view: View | None) -> Tensor:
    return torch.zeros(()).double() if view is None else state[view.parameter].flatten()[view.entries].flatten()
