"""What is no model is refused by every public function in one line, with what to do instead; so are wrong names."""

import re

import pytest
import torch
from torch import nn

import intertwine as iw

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
LOADER = [(X, torch.arange(8) % 3)]
NET = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
CONCEPTS = iw.lab.data.load_concepts("generated", images=4)

CALLS = {
    "symmetries": lambda m: iw.symmetries(m, X),
    "canonical": lambda m: iw.canonical(m, X),
    "fingerprint": lambda m: iw.fingerprint(m, X),
    "same": lambda m: iw.same(NET, m, X),
    "align": lambda m: iw.align(NET, m, X),
    "merge": lambda m: iw.merge(NET, m, None),
    "barrier": lambda m: iw.barrier(NET, m, LOADER),
    "compare": lambda m: iw.compare(NET, m, LOADER),
    "stitch": lambda m: iw.stitch(NET, m, "1", loader=LOADER),
    "dissect": lambda m: iw.dissect(m, "1", None),
    "fold": lambda m: iw.fold(m, X),
    "rotate": lambda m: iw.rotate(m, X),
    "lineage": lambda m: iw.lineage(NET, m, X),
    "collect": lambda m: iw.collect(m, LOADER),
    "dgn": lambda m: iw.gates.dgn(m),
    "dlgn": lambda m: iw.gates.dlgn(m),
    "dlgn_sf": lambda m: iw.gates.dlgn_sf(m, X),
    "paths": lambda m: iw.gates.paths(m, X),
    "neural_path_kernel": lambda m: iw.gates.neural_path_kernel(m, X),
    "neural_tangent_kernel": lambda m: iw.gates.neural_tangent_kernel(m, X),
    "overlap": lambda m: iw.gates.overlap(m, X),
    "assert_same_function": lambda m: iw.testing.assert_same_function(NET, m, X),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_model_is_refused_with_what_to_do(call):
    for given, instead in (
        ("openai-community/gpt2", r"Got 'openai-community/gpt2'. Load the model first, such as by transformers"),
        ("weights/a.safetensors", r"load_state_dict\(safetensors.torch.load_file"),
        (NET.state_dict(), r"It is a state dict: build the model and call model.load_state_dict"),
    ):
        with pytest.raises(TypeError, match=rf"^(a|b|model|twin) must be a torch.nn.Module. .*{instead}") as caught:
            call(given)
        assert "\n" not in str(caught.value)


META = {
    **CALLS,
    "diff": lambda m: iw.diff(NET, m, X),
    "merge": lambda m: iw.merge(NET, m, iw.align(NET, NET, X)),
    "correspond": lambda m: iw.correspond(NET, m, X),
    "verify": lambda m: iw.symmetries(NET, X).verify(m, X),
}


META["dissect"] = lambda m: iw.dissect(m, "1", CONCEPTS)
READ_NO_NUMBERS = {"dgn", "dlgn"}


@pytest.mark.parametrize("name", sorted(READ_NO_NUMBERS))
def test_what_reads_no_numbers_takes_a_model_without_weights(name):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    made = META[name](model)
    assert all(p.is_meta for p in made.parameters())


@pytest.mark.parametrize("name", sorted(META.keys() - READ_NO_NUMBERS))
def test_a_model_without_weights_is_refused_in_one_line(name):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises((ValueError, iw.IntertwineError), match="meta") as caught:
        META[name](model)
    assert "\n" not in str(caught.value)


TWO = {
    "correspond": lambda a, b: iw.correspond(a, b, X),
    "same": lambda a, b: iw.same(a, b, X),
    "diff": lambda a, b: iw.diff(a, b, X),
    "compare": lambda a, b: iw.compare(a, b, LOADER),
    "compare_many": lambda a, b: iw.compare_many([a, b], LOADER),
    "stitch": lambda a, b: iw.stitch(a, b, "1", loader=LOADER),
    "assert_same_function": lambda a, b: iw.testing.assert_same_function(a, b, X),
    "align": lambda a, b: iw.align(a, b, X),
    "merge": lambda a, b: iw.merge(a, b, None),
    "barrier": lambda a, b: iw.barrier(a, b, LOADER),
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("kind", ["width", "tokens"])
def test_inputs_that_fit_one_of_two_networks_name_the_other(name, kind):
    first = nn.Linear(7, 5) if kind == "width" else nn.Embedding(9, 5)
    other = nn.Sequential(first, nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises((ValueError, iw.IntertwineError)) as caught:
        TWO[name](NET, other)
    said = str(caught.value)
    named = r"(^|\W)(b|twin|network 2)(: model)? must run on the example inputs.*(in another form|example_inputs_b)"
    same_code = r"^a and b must be of one architecture and have the same widths|must have shape"
    assert re.search(rf"{named}|{same_code}", said)
    assert "\n" not in said


def test_diff_takes_state_dicts_and_refuses_text():
    assert iw.diff(NET, NET.state_dict(), X).same_function
    with pytest.raises(TypeError, match=r"^b must be a torch.nn.Module. Got 'gpt2'"):
        iw.diff(NET, "gpt2", X)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: iw.fold(NET, X, norm=True), r"fold\(\) has no argument 'norm'. Did you mean 'norms'\?"),
        (lambda: iw.compare(NET, NET, LOADER, measure="cka"), "Did you mean 'measures'"),
        (lambda: iw.compare(NET, NET, LOADER, seed=1), r"'seed'\. Say resampling=Resampling\(seed=\.\.\.\)\.$"),
        (lambda: iw.barrier(NET, NET, LOADER, calibration=LOADER), r"Say options=PathOptions\(calibration=\.\.\.\)"),
        (lambda: iw.stitch(NET, NET, "1", epochs=3), r"Say method=Recipe\(epochs=\.\.\.\)"),
        (lambda: iw.align(NET, NET, X, method="weigths"), "Did you mean 'weights'"),
        (lambda: iw.compare(NET, NET, LOADER, measures="linear_kca"), "Did you mean 'linear_cka'"),
        (lambda: iw.similarity.procrustes(X, X, group="orthogonl"), "Did you mean 'orthogonal'"),
        (lambda: iw.similarity.cka(X, X, estimator="unbised"), "Did you mean 'unbiased'"),
        (lambda: iw.stitch(NET, NET, "1", family="grelu", loader=LOADER), "Did you mean 'g_relu'"),
    ],
)
def test_a_wrong_name_is_answered_by_the_one_that_was_meant(call, meant):
    with pytest.raises((TypeError, ValueError), match=meant):
        call()


@pytest.mark.parametrize("name", ["align", "barrier", "compare", "diff", "dissect", "lineage", "same", "stitch"])
def test_front_doors_answer_a_wrong_argument(name):
    with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument 'nonsense'\."):
        getattr(iw, name)(nonsense=1)


BATCHES = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=4)
SLIPS = {
    "a loader for an example": (lambda: iw.same(NET, NET, BATCHES), r"Got a DataLoader. Pass the inputs of one batch"),
    "a number for layers": (lambda: iw.compare(NET, NET, LOADER, 1), r"^layers must be a name, a pattern .* Got 1\.$"),
    "a method for an alignment": (
        lambda: iw.merge(NET, NET, "weights"),
        r"^alignment must be what align.* Got 'weights'",
    ),
    "half of a measure's name": (lambda: iw.compare(NET, NET, LOADER, measures="cka"), r"Did you mean 'linear_cka'\?$"),
}


@pytest.mark.parametrize("name", SLIPS)
def test_slips_are_named_with_what_to_do(name):
    call, message = SLIPS[name]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
