"""Models by a line of text."""

import pytest
import torch
from torch import nn

from intertwine.cli.inputs.models import build_model, call_factory
from intertwine.errors import CheckpointError


def test_built_in_names():
    assert build_model("mlp:widths=7").linear1.out_features == 7


def test_factories_in_files(user_models):
    assert build_model(f"{user_models}:make_net")[1].out_features == 12
    model = build_model(f"{user_models}:make_net:width=5,bias=false")
    assert (model[1].out_features, model[1].bias) == (5, None)


def test_factories_in_packages():
    assert isinstance(build_model("torch.nn:Identity"), nn.Identity)
    assert build_model("torch.nn:LeakyReLU:negative_slope=1e-1").negative_slope == 0.1


def test_an_instance_is_copied(user_models):
    first, second = (build_model(f"{user_models}:INSTANCE") for _ in range(2))
    with torch.no_grad():
        first[1].weight.zero_()
    assert second[1].weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("{file}:nothing", ValueError, r"must name something callable.*Got 'nothing'\. It has .*make_net"),
        ("{file}:not_a_model", TypeError, r"must return a torch\.nn\.Module\. Got int"),
        ("{file}:broken", ValueError, r"must build a model\. Got KeyError: 'inside'"),
        ("{file}:make_net:width", ValueError, r"arguments must be written name=value\. Got 'width'"),
        ("{file}:make_net:depth=3", ValueError, r"must build a model\. Got TypeError: .*depth"),
        ("hf:nowhere", CheckpointError, r"hf:DIRECTORY with a config\.json.*Nothing is downloaded"),
    ],
)
def test_bad_specs(user_models, spec, kind, message):
    with pytest.raises(kind, match=message):
        build_model(spec.format(file=user_models))


def test_a_factory_that_is_not_there_is_said_before_the_shape_of_its_inputs(run, user_models):
    assert "must name something callable" in run("symmetries", f"{user_models}:make_nett").error
    assert "--input-shape or --data must be given" in run("symmetries", f"{user_models}:make_net").error


def test_any_callable_can_be_found(user_models):
    assert call_factory(f"{user_models}:my_sigma", "activation")(torch.zeros(2)).tolist() == [0, 0]
