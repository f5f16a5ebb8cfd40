"""Capturing a run: what is recorded, what is refused, and that the model is left as it was."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from made import Function, Made
from stitching_models import is_cut_vertex
from torch import nn

from intertwine.errors import CaptureError
from intertwine.programs import capture


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.b(F.relu(self.a(x))))


def ops(program):
    return [c.op.removeprefix("aten::") for c in program.calls]


def test_calls_name_module_line_and_parameters():
    program = capture(Residual(), (torch.zeros(2, 4),))
    relu = next(c for c in program.calls if c.op == "aten::relu")
    assert relu.module == "" and relu.line.startswith("test_capture.py:")
    products = [c for c in program.calls if c.op == "aten::addmm"]
    assert program.parameters_of(products[0]) == ("stem.bias", "stem.weight")
    assert [c.module for c in products] == ["stem", "a", "b", "head"]


def test_a_program_prints_short_and_lists_its_calls_when_asked():
    program = capture(Residual(), (torch.zeros(2, 4),))
    assert len(repr(program)) < 80
    lines = program.summary().splitlines()
    assert [line.split(" = ")[1].split("(")[0] for line in lines] == [c.op for c in program.calls]
    assert all("test_capture.py:" in line for line in lines if "relu" in line)


def test_cut_vertices_are_those_that_no_skip_passes():
    program = capture(Residual(), (torch.zeros(2, 4),))
    assert [t for t in ("stem", "a", "b", "head") if is_cut_vertex(program, t)] == ["stem", "head"]
    assert [c.op for c in program.before("stem")] == ["aten::t", "aten::addmm"]
    with pytest.raises(ValueError, match="tap must be a module call"):
        program.before("nowhere")


def test_modules_that_run_twice_are_numbered():
    shared = nn.Linear(4, 4)
    program = capture(nn.Sequential(shared, nn.ReLU(), shared), (torch.zeros(2, 4),))
    assert {"0#0", "0#1", "1"} <= set(program.taps)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    capture(model, (torch.randn(3, 4),))
    assert model.training and model[2].training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not model[0]._forward_hooks and torch.backends.mha.get_fastpath_enabled()


class Writes(nn.Module):
    """Writes in place, in a way that ``how`` names."""

    def __init__(self, how):
        super().__init__()
        self.a, self.how = nn.Linear(4, 6), how

    def forward(self, x):
        h = self.a(x)
        if self.how == "whole":
            h.relu_()
        elif self.how == "chunks":
            left, right = h.chunk(2, -1)
            left.add_(1.0)
            return left * right
        elif self.how == "part":
            h[:, :2] = 0.0
        elif self.how == "overlap":
            left, right = h[:, :4], h[:, 2:]
            right.mul_(2.0)
            return left * 3
        elif self.how == "view":
            h.view(-1).relu_()
        return h * 2


@pytest.mark.parametrize("how", ["whole", "chunks", "part", "view", "overlap"])
def test_writes_in_place(how):
    program = capture(Writes(how), (torch.randn(3, 4),))
    made = [c.op.removeprefix("intertwine::") for c in program.calls if c.op.startswith("intertwine::")]
    assert made == {
        "part": ["written_into"],
        "view": ["part_of_write"],
        "overlap": ["written_into", "part_of_write"],
    }.get(how, [])
    if how == "whole":
        relu, product = program.calls[-2:]
        assert product.inputs == relu.outputs


class Reads(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.a, self.read = nn.Linear(4, 4), read

    def forward(self, x):
        h = self.a(x)
        return h * self.read(h)


READERS = {
    "item": lambda h: h[0, 0].item(),
    "bool": lambda h: 2.0 if h.sum() > 0 else 3.0,
    "tolist": lambda h: h[0].tolist()[1],
    "numpy": lambda h: float(h.numpy()[0, 0]),
    "float": lambda h: float(h[0, 1]),
    "list made a tensor": lambda h: torch.tensor([h.sum(), 1.0])[0],
    "list like another": lambda h: h.new_tensor([h.sum(), h.mean()])[0],
    "list as it is": lambda h: torch.as_tensor([h.sum(), h.mean()])[0],
    "text": lambda h: len(str(h)),
}


@pytest.mark.parametrize("how", READERS)
def test_numbers_taken_out_are_noticed(how):
    program = capture(Reads(READERS[how]), (torch.randn(3, 4),))
    assert program.reads and all(line.startswith("test_capture.py:") for line in program.reads)
    assert "intertwine::read" in [c.op for c in program.calls]


def test_sparse_tensors_are_refused_by_name():
    with pytest.raises(CaptureError, match=r"Got a sparse one \(torch.sparse_coo\): use a dense one"):
        capture(Reads(lambda h: torch.sparse.mm(torch.eye(3).to_sparse(), h)), (torch.randn(3, 4),))


def test_numbers_of_constants_are_no_reads():
    program = capture(Reads(lambda h: torch.arange(4.0).sum().item()), (torch.randn(3, 4),))
    assert not program.reads


def test_a_model_that_fails_names_module_and_line():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 3))
    with pytest.raises(CaptureError, match="RuntimeError in 1: mat1 and mat2"):
        capture(model, (torch.zeros(2, 4),))


def test_a_model_of_another_precision_than_its_inputs_is_told_what_to_convert():
    with pytest.raises(CaptureError, match=r"Linear are float16, the example inputs float32.*float\(\)"):
        capture(nn.Linear(3, 2).half(), torch.zeros(1, 3))


def test_refusals():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        capture(lambda x: x, (torch.zeros(2),))
    with pytest.raises(CaptureError, match="must be a Python module"):
        capture(torch.jit.script(nn.Linear(2, 2)), (torch.zeros(3, 2),))

    with pytest.raises(CaptureError, match="must return a tensor"):
        capture(Made(lambda m, x: "words"), (torch.zeros(2),))
    with pytest.raises(CaptureError, match="initialised"):
        capture(nn.LazyLinear(3), (torch.zeros(2, 3),))
    sparse = nn.Linear(4, 4)
    sparse.weight = nn.Parameter(sparse.weight.detach().to_sparse())
    with pytest.raises(CaptureError, match="dense floating-point"):
        capture(sparse, (torch.zeros(2, 4),))
    halves = nn.ParameterList([])
    whole = torch.randn(6)
    halves.append(nn.Parameter(whole[:4]))
    halves.append(nn.Parameter(whole[2:]))
    with pytest.raises(CaptureError, match="share memory in part"):
        capture(halves, ())


def test_tied_parameters_are_declared_once():
    tied = Made(lambda m, x: m.head(m.embed(x)), embed=nn.Embedding(5, 4), head=nn.Linear(4, 5, bias=False))
    tied.head.weight = tied.embed.weight
    program = capture(tied, (torch.zeros(2, 3, dtype=torch.long),))
    assert len(program.states) == 1 and len(program.aliases) == 1


def test_meta_models_are_captured():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096))
    assert ops(capture(model, (torch.zeros(2, 4096, device="meta"),))) == ["t", "addmm", "gelu", "t", "addmm"]


def test_the_lowest_precision_is_noted():
    assert (
        capture(Function(lambda x: (x.to(torch.bfloat16) * 2).to(x.dtype)), (torch.randn(2, 3),)).dtype
        == torch.bfloat16
    )


def test_transformed_tensors_are_refused_clearly():
    per_example = Made(lambda m, x: torch.vmap(lambda row: m.a(row).relu())(x), a=nn.Linear(6, 8))
    with pytest.raises(CaptureError, match=r"torch\.vmap or torch\.func\.jvp.*call the function on the whole batch"):
        capture(per_example, (torch.randn(4, 6),), {}, "record")


def test_an_operation_may_return_a_result_and_write_an_argument():
    program = capture(nn.Sequential(nn.Linear(3, 4), nn.RReLU()), (torch.zeros(2, 3),))
    made = {out for call in program.calls for out in call.outputs}
    assert program.outputs[0] in made and program.calls[-1].op == "aten::rrelu_with_noise"
    assert len(program.calls[-1].outputs) == 2


def test_a_line_is_never_one_of_the_caller():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    reads = capture(nn.GRU(2, 3), (packed,)).reads
    assert reads and all(line.startswith("torch/nn/modules/rnn.py:") for line in reads)


def test_scripted_children_and_exported_modules_run_as_others_do():
    layers = [nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))]
    whole, x = nn.Sequential(*layers), torch.zeros(2, 3)
    scripted = capture(nn.Sequential(layers[0], torch.jit.script(layers[1])), (x,))
    exported = capture(torch.export.export(whole, (x,)).module(), (x,))
    assert scripted.states.keys() == capture(whole, (x,)).states.keys()
    for program in (scripted, exported):
        assert [op for op in ops(program) if op in ("relu", "addmm", "linear")][-2:] == ["relu", "addmm"]


def test_values_of_the_run_die_when_the_model_lets_them_go():
    alive = []

    class Watched(nn.Module):
        def forward(self, x):
            alive.append([ref() is not None for ref in kept])
            kept.append(weakref.ref(h := x * 2))
            return h

    kept = []
    program = capture(nn.Sequential(*[Watched() for _ in range(4)]), (torch.zeros(2, 3),))
    assert alive[-1] == [False, False, True] and len(program.calls) == 4
    chain = [call.inputs[0] for call in program.calls[1:]]
    assert chain == [call.outputs[0] for call in program.calls[:-1]]
