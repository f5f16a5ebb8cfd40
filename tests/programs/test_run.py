"""Programs run again: any batch size, other states, operations watched and replaced, gradients, both modes of norms."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from made import Function, Made
from torch import nn
from zoo import Attention

from intertwine.programs import Part, capture, capture_dynamic, check_path, operations
from intertwine.programs.program import float64_handler, run_call


class Network(nn.Module):
    """Convolutions with batch norm, a clamp as ReLU, max pooling, a skip connection and a view that holds the batch."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.branch, self.head = nn.Conv2d(5, 5, 1), nn.Linear(5 * 4, 3)

    def forward(self, x):
        x = F.max_pool2d(torch.clamp_min(self.norm(self.stem(x)), 0), 2)
        x = x + torch.relu_(self.branch(x))
        return self.head(x.view(x.shape[0], -1))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Network().double()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2)
    return model.eval()


@pytest.fixture
def x():
    return torch.randn(9, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def live(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("n", [1, 4, 9])
def test_a_program_gives_what_the_model_gives_for_any_batch(model, x, n):
    program = capture_dynamic(model, x)
    torch.testing.assert_close(program.run(x[:n])[0], model(x[:n]))
    torch.testing.assert_close(Part(program)(x[:n])[0], model(x[:n]))


def test_a_plain_capture_runs_on_the_shape_it_was_captured_on(model, x):
    program = capture(model, (x,))
    torch.testing.assert_close(program.run(x * 2, states=live(model))[0], model(x * 2))
    with pytest.raises(ValueError, match=r"inputs must be shaped as in the captured run, \(9, 3, 4, 4\)"):
        program.run(x[:4], states=live(model))
    with pytest.raises(ValueError, match=r"states must hold all that is read\. Got no parameter 'stem.weight'"):
        program.run(x)


def test_other_states_take_the_place_of_those_captured(model, x):
    program, other = capture_dynamic(model, x), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3)
    assert not torch.allclose(program.run(x)[0], other(x))
    torch.testing.assert_close(program.run(x, states=live(other))[0], other(x))
    torch.testing.assert_close(
        program.run(x, states={"head.bias": torch.zeros(3).double()})[0] + model.head.bias, model(x)
    )
    with pytest.raises(ValueError, match=r"Got 'head\.scale'"):
        program.run(x, states={"head.scale": torch.ones(())})


def test_gradients_reach_states_and_inputs(model, x):
    program = capture_dynamic(model, x)
    x.requires_grad_(True)
    wanted = torch.autograd.grad(model(x).square().sum(), [*model.parameters(), x])
    found = torch.autograd.grad(program.run(x, states=live(model))[0].square().sum(), [*model.parameters(), x])
    torch.testing.assert_close(found, wanted)


def test_training_mode_is_that_of_batch_norm(model, x):
    program, other = capture_dynamic(model, x), copy.deepcopy(model).train()
    states = {name: tensor.detach().clone() for name, tensor in live(model).items()}
    torch.testing.assert_close(program.run(x, states=states, training=True)[0], other(x))
    torch.testing.assert_close(states["norm.running_mean"], other.norm.running_mean)
    torch.testing.assert_close(states["norm.running_var"], other.norm.running_var)


def test_any_value_is_watched_and_a_part_starts_anywhere(model, x):
    program = capture_dynamic(model, x)
    gates = program.find(operations.is_gate)
    assert [program.calls[i].op for i in gates] == ["aten::clamp_min", "aten::max_pool2d_with_indices", "aten::relu"]
    q, pooled, taken = program.run(x, [program.calls[gates[0]].inputs[0], *program.calls[gates[1]].outputs])
    torch.testing.assert_close(q, model.norm(model.stem(x)))
    torch.testing.assert_close((pooled, taken), F.max_pool2d(q.relu(), 2, return_indices=True))
    (y,) = program.run(pooled, start=program.calls[gates[1]].outputs[:1])
    torch.testing.assert_close(y, model(x))
    assert torch.equal(program.run(q, [program.taps["norm"]], start=[program.taps["norm"]])[0], q)


def test_handlers_see_and_replace_operations(model, x):
    program, seen = capture_dynamic(model, x), []
    _, pool, second = program.find(operations.is_gate)

    def watch(call, operation, args):
        seen.append((call.op, args["self"].shape))
        return operation(**args)

    def closed(call, operation, args):
        return args["self"] * 0

    (y,) = program.run(x, handlers={pool: watch, second: closed})
    assert seen == [("aten::max_pool2d_with_indices", (9, 5, 4, 4))]
    x = F.max_pool2d(model.norm(model.stem(x)).relu(), 2)
    torch.testing.assert_close(y, model.head(x.flatten(1)))


def test_random_operations_are_read_off_a_program_of_the_model_as_it_is():
    drops = Made(lambda m, x: F.dropout(x, 0.5, m.training) + F.dropout(x, 0.0, m.training))
    model, x = drops.train(), torch.randn(2, 3)
    calls = capture(model, (x,), evaluation=False).calls
    assert model.training and sum(map(operations.is_random, calls)) == 1
    assert not capture(model, (x,)).find(operations.is_random)


def test_a_capture_in_training_mode_leaves_running_statistics_alone():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train(), torch.randn(5, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert capture(model, (x,), evaluation=False).find(operations.normalises_by_input)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_one_table_says_what_operations_are():
    def program(f, *shape):
        return capture(Function(f), (torch.randn(*shape),))

    gates = [F.relu, lambda x: x.clamp(min=0), lambda x: F.leaky_relu(x, 0.3), abs, lambda x: F.threshold(x, 0, 0)]
    slopes = [0, 0, 0.3, -1, 0]
    for f, slope in zip(gates, slopes):
        (call,) = program(f, 2, 3).calls
        assert operations.is_gate(call) and operations.slope_of(call) == slope
    others = [F.relu6, lambda x: x.clamp(0, 1), lambda x: x.clamp(min=1), lambda x: F.threshold(x, 1, 0), torch.tanh]
    assert not any(operations.is_gate(call) for f in others for call in program(f, 2, 3).calls)
    (norm,) = program(lambda x: F.layer_norm(x, (3,)), 2, 3).calls
    assert operations.normalises_by_input(norm)


SHIFT = torch.tensor([0.1, 7], dtype=torch.float32)


def test_in_float64_casts_leave_numbers_as_they_are():
    x = torch.randn(2, dtype=torch.float64)
    model = Function(lambda x: (x.half() * 3 + SHIFT).to(torch.bfloat16).flip(0))
    program = capture(model, (x.float(),))
    every = dict.fromkeys(range(len(program.calls)), float64_handler)
    (found,) = program.run(x, handlers=every)
    expected = (x * 3 + SHIFT).flip(0)
    assert found.dtype == torch.float64 and torch.equal(found, expected)
    assert not torch.equal(program.run(x.float())[0].double(), expected)


def test_one_call_alone_gives_what_it_gives_within_the_run():
    x, model = torch.randn(4, 3), nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    program = capture(model, (x,))
    last = program.calls[-1]
    (before,) = last.inputs
    inner, outer = program.run(x, [before, *program.outputs], states=live(model))
    assert torch.equal(run_call(last, {before.id: inner})[0], outer)


def attention_call():
    program = capture(Attention(8, 2, packed=True, causal=True).eval(), (torch.randn(2, 5, 8),))
    return next(c for c in program.calls if "dot_product" in c.op)


def test_attention_of_another_device_runs_here_and_has_gradients():
    call = attention_call()
    given = {"query": call.args["query"], "key": call.args["key"], "value": call.args["value"]}
    on_gpu = replace(
        call, op="aten::_scaled_dot_product_efficient_attention",
        func=torch.ops.aten._scaled_dot_product_efficient_attention.default,
        args={**given, "attn_bias": None, "compute_log_sumexp": False, "dropout_p": 0.0, "is_causal": True},
    )  # fmt: skip
    q, k, v = tensors = torch.randn(3, 2, 2, 5, 4, dtype=torch.float64, requires_grad=True).unbind()
    found = run_call(on_gpu, {ref.id: t for ref, t in zip(given.values(), tensors)})[0]
    assert torch.allclose(found, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert torch.autograd.grad(found.sum(), v)[0].abs().sum() > 0


def test_heads_that_share_keys_run():
    torch.manual_seed(0)
    call = attention_call()
    names = "query", "key", "value"
    q, k, v = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    found = run_call(call, {call.args[name].id: t for name, t in zip(names, (q, k, v))})[0]
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    assert torch.allclose(found, F.scaled_dot_product_attention(q, *wide, is_causal=True), atol=1e-6)


class Masked(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        out = -out if x.abs().max() > 3 else out
        return out.masked_fill(torch.tensor([False, True]), -torch.inf)


def test_masked_outputs_are_compared_by_their_finite_numbers():
    """Infinite ones that are equal differ by NaN, and as a measure of size they would let all else pass."""
    model, x = Masked(3, 2), torch.rand(6, 3)
    program = capture_dynamic(model, x)
    assert torch.equal(program.run(x)[0], model(x))
    check_path(model, program, x, model(x))
    with pytest.raises(RuntimeError, match="must do the same on all data as on the first batch"):
        check_path(model, program, 10 * x, program.run(10 * x)[0])


def test_capturing_leaves_random_numbers_of_accelerators_alone(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    capture_dynamic(nn.Linear(3, 2), torch.randn(5, 3))
    assert not seeds
