"""What one configuration is tried with: random elements, ``fold``, ``same`` of a moved copy, ``correspond``."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from networks.case import Case
from networks.judge import build, clear, difference, judge, one_line, readable, run
from torch import nn
from torch.func import functional_call

import intertwine as iw
from intertwine.errors import VerificationError

__all__ = ["STEPS", "tried"]

EQUAL = {torch.float64: 1e-8, torch.float32: 1e-4}  # relative change of the function by a fold, by its weights


class Renamed(nn.Module):
    """A network whose tensors have other names, and whose code is the same."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.code, self.names = [model], {}
        for number, (name, value) in enumerate(model.named_parameters()):
            self.names[name] = f"weight_{number}"
            self.register_parameter(f"weight_{number}", value)
        for number, (name, value) in enumerate(model.named_buffers()):
            self.names[name] = f"statistic_{number}"
            self.register_buffer(f"statistic_{number}", value, persistent=name in model.state_dict())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network computes."""
        return functional_call(self.code[0], {n: getattr(self, own) for n, own in self.names.items()}, args, kwargs)


def folded(model: nn.Module, example: Any, inputs: Any) -> str:
    """What ``fold`` does: ``right``, ``nothing`` to fold, ``refused``, ``wrong``."""
    try:
        found = iw.fold(model, example)
    except VerificationError as error:
        return f"{'refused' if 'control' in str(error) else 'wrong'}: {one_line(error)}"
    except ValueError as error:
        return "nothing" if "fold" in str(error) else f"refused: {one_line(error)}"
    error = difference(run(model, inputs), run(found.model, inputs))
    kind = max((p.dtype for p in model.parameters() if p.is_floating_point()), key=lambda d: EQUAL.get(d, 0.0))
    done = "right" if found.changed else "nothing"
    return done if error <= EQUAL[kind] else f"wrong: changes the function by {error:.1e}"


def matched(model: nn.Module, example: Any, inputs: Any) -> str:
    """What ``same`` says of a moved copy: ``same``, ``cannot be told``, ``related``, ``different`` ..."""
    sym = iw.symmetries(model, example)
    g = iw.symmetry.admissible(sym, sym.random(3), dict(model.state_dict()))
    found = iw.same(model, sym.act(g, model), example)
    names = {"the same network up to symmetry": "same", "related (merged, fine-tuned)": "related"}
    said = names.get(found.verdict, found.verdict)
    return said if said == "same" else f"{said}: {found.reason} {list(found.differing)[:4]}"


def renamed(model: nn.Module, example: Any, inputs: Any) -> str:
    """What ``correspond`` says of a copy under other names: ``proved``, ``not proved``, or its verdict."""
    found = iw.correspond(model, Renamed(copy.deepcopy(model)), example)
    if found.verdict != "the same program":
        return f"{found.verdict}: {found.reason}"
    return "proved" if found.proved else "not proved"


STEPS: dict[str, Callable[[nn.Module, Any, Any], str]] = {"fold": folded, "same": matched, "correspond": renamed}


def tried(case: Case, say: Callable[[dict[str, Any]], None]) -> None:
    """Try one configuration, and say what is known after each step, should time run out in the next."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    verdict = judge(case, seeds=1, budget=0.2)
    say({"parameters": verdict.parameters, "symmetries": verdict.verdict, "spaces": verdict.spaces, "dim": verdict.dim,
         "error": f"{verdict.error:.0e}", "tolerance": f"{verdict.tolerance:.0e}", "why": verdict.why})  # fmt: skip
    if verdict.verdict in ("unusable", "crash", "slow", "refused"):
        return
    if verdict.verdict == "fixed":
        say({"why": "; ".join(f"{n} {reason}" for reason, n in list(verdict.fixed.items())[:4])})
    model = build(case)
    inputs = case.inputs(1, 1.0, 2)
    read, example = readable(model, inputs)
    for name, step in STEPS.items():
        say({name: "slow"})
        try:
            say({name: step(read, example, inputs)})
        except Exception as error:  # any error is a finding
            say({name: f"{'refused' if clear(error) else 'crash'}: {one_line(error)}"})
