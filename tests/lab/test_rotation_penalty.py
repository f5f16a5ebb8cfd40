"""The rotation-penalty experiment (paper 1, v1 D.0.1, v2 3.3)."""

import pytest
import torch

from intertwine.groups import Orthogonal, PositiveMonomial
from intertwine.lab.data import load
from intertwine.lab.experiments import Setting, experiment
from intertwine.lab.networks import build, mlp
from intertwine.lab.training import RECIPES, Card, save_checkpoint, train
from intertwine.lab.training.rotation_penalty import freeze_up_to, rotation_penalty, transform_layer


@pytest.fixture(scope="module")
def trained():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = mlp(widths=(64, 10))  # ten units, all of which are needed
    return train(model, "digits", RECIPES["digits"].but(epochs=8), progress=False).model


@pytest.mark.parametrize("kind", ["orthogonal", "g_relu"])
def test_later_layers_can_undo_elements_of_g_relu_only(kind):
    """W_{l+1} phi(A)^-1: exact for one, and for no matrix at all exact for the other (here the best linear one)."""
    torch.manual_seed(0)
    model, x = build("digits_cnn:bn=false,width=4").double(), torch.randn(64, 1, 8, 8, dtype=torch.float64)
    group = PositiveMonomial(4) if kind == "g_relu" else Orthogonal(4)
    e = group.random(generator=1)
    turned = transform_layer(model, "conv1", e.matrix())
    before, after = (torch.relu(m.conv1(x)).transpose(0, 1).flatten(1) for m in (model, turned))
    best = torch.linalg.lstsq(after.T, before.T)
    error = (best.solution.T @ after - before).norm() / before.norm()
    assert (error < 1e-12) == (kind == "g_relu")
    torch.testing.assert_close(turned.conv1(x), e.apply(model.conv1(x)))  # before the activation both are exact
    if kind == "g_relu":
        with torch.no_grad():
            inverse = (~e).matrix()
            turned.conv2.weight.copy_(torch.einsum("oihw,ij->ojhw", turned.conv2.weight, inverse))
        torch.testing.assert_close(turned(x), model(x))


def test_grouped_convolutions_are_refused():
    """Rows of their weights read other channels, so that mixing rows mixes no outputs."""
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(ValueError, match=r"layer must not be a grouped convolution\. Got '0' with 2 groups"):
        transform_layer(model, "0", Orthogonal(4).random(generator=0).matrix())


def test_everything_up_to_the_layer_is_frozen_and_nothing_else():
    model, x = build("digits_cnn:bn=false,width=4"), torch.randn(2, 1, 8, 8)
    frozen = freeze_up_to(model, "conv2", x)
    assert set(frozen) == {name for name, _ in model.named_parameters() if name.startswith(("conv1", "conv2"))}
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        n for n, _ in model.named_parameters() if not n.startswith(("conv1", "conv2"))
    ]


def test_rotations_cost_more_than_elements_of_g_relu(trained):
    """The paper's claim in words, where every unit is needed; nothing is changed."""
    before = {k: v.clone() for k, v in trained.state_dict().items()}
    recipe = RECIPES["digits"].but(epochs=5, learning_rate=1e-2)
    runs = {
        kind: [rotation_penalty(trained, "linear2", kind, load("digits"), recipe, seed=seed) for seed in range(3)]
        for kind in ("orthogonal", "g_relu")
    }
    mean = {kind: sum(r.penalty for r in found) / 3 for kind, found in runs.items()}
    assert mean["orthogonal"] > mean["g_relu"] + 0.02
    for r in runs["orthogonal"]:
        assert r.transformed < 0.4 < r.after and r.penalty == r.before - r.after
    assert all(torch.equal(v, before[k]) for k, v in trained.state_dict().items())
    assert all(p.requires_grad for p in trained.parameters())


def test_the_figure_is_an_experiment(tmp_path):
    """A planned job gives a network's penalties with the number of test images, and changes with every setting."""
    plan = experiment("fig4-rotation-penalty").planned(Setting(folder=tmp_path))
    assert {task.columns["arm"] for task in plan.tasks} == {"rotation", "G_ReLU", "trivial baseline"}
    job = next(task.job for task in plan.tasks if task.columns["arm"] == "rotation")
    path = tmp_path / "one.safetensors"
    model = build("digits_cnn:bn=false,width=4,channels=1")
    save_checkpoint(path, model, Card(architecture="digits_cnn:bn=false,width=4", classes=("0",) * 10, shape=(1, 8, 8)))
    recipe = RECIPES["digits"].but(epochs=1).to_dict()
    one = job.model_copy(update={"checkpoint": str(path), "recipe": recipe, "examples": 64, "device": "cpu"})
    by = lambda job: {row["statistic"]: row for row in job.run(tmp_path)}
    found = by(one)
    assert set(found) == {"penalty", "penalty at once", "loss of fine-tuning"}
    assert {row["layer"] for row in found.values()} == {"conv1"} and found["penalty"]["images"] == 359
    loss = lambda **change: by(one.model_copy(update=change))["loss of fine-tuning"]["value"]
    assert loss() == found["loss of fine-tuning"]["value"] > 0
    changes = ({"kind": "g_relu"}, {"layer": "conv2"}, {"seed": 1}, {"recipe": recipe | {"learning_rate": 2e-3}},
               {"examples": 65})  # fmt: skip
    assert len({loss(), *(loss(**change) for change in changes)}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "affine"}, 'kind must be "orthogonal" or "g_relu"'),
        ({"layer": "relu1"}, "layer must be a convolution or linear layer, before its activation. Got 'relu1'"),
        ({"model": build("digits_cnn")}, "model must have no batch norm"),
    ],
)
def test_bad_input(change, message):
    how = {"model": build("mlp"), "layer": "linear1", "kind": "g_relu", "data": load("digits"), "seed": 0}
    with pytest.raises(ValueError, match=message):
        rotation_penalty(**{**how, "recipe": "digits", **change})
    with pytest.raises(ValueError, match="matrix must be 64 x 64"):
        transform_layer(build("mlp"), "linear1", torch.eye(3))
