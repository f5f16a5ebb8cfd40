"""Every kind of element keeps the function of every model of the zoo to 1e-12, and permutations move bits exactly."""

import pytest
import torch
from zoo import ZOO, found

from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.proof import verify
from intertwine.symmetry.transformation import KINDS


@pytest.mark.parametrize("name", ZOO)
def test_function_is_kept(name):
    model, inputs, sym = found(name)
    assert not sym.unknown_ops and not sym.path_only
    report = verify(sym, model, inputs, seeds=2, per_space=False)
    limit = 1e-12 if report.dtype == torch.float64 else 1e-5  # the model's own code casts to float32
    assert report.worst < limit, str(report)
    assert report.controls[0].error > 1e3 * report.rtol


@pytest.mark.parametrize("name", ["resnet20_a", "shufflenet_3", "gpt_packed", "lstm_deep"])
def test_permutations_move_bits_exactly(name):
    model, _, sym = found(name)
    twin = sym.act(sym.random(seed=1, kinds={"permutation"}), model)
    for key, tensor in tensors_of(model).items():
        assert torch.equal(tensors_of(twin)[key].flatten().sort().values, tensor.flatten().sort().values)


@pytest.mark.parametrize("name", ["vit_module", "resnext", "unet"])
def test_every_space_alone(name):
    model, inputs, sym = found(name)
    report = verify(sym, model, inputs, seeds=1)
    assert report.worst < 1e-12 and {c.kind for c in report.checks} <= set(KINDS)
