"""Layouts of hidden features: what the engine writes down of every module's output is how an element moves it."""

import pytest
import torch
import zoo

from intertwine.symmetry.action import admissible, tensors_of, transform

SILENT = {"weight_norm_by_hand", "lstm", "gru", "rnn_relu", "tied_autoencoder"}  # no module returns one moving tensor


def outputs_of(model, names, example):
    args = example if isinstance(example, tuple) else (example,)
    found = {}
    hooks = [
        dict(model.named_modules())[n].register_forward_hook(lambda m, a, out, n=n: found.__setitem__(n, out))
        for n in names
    ]
    with torch.no_grad():
        model(*args)
    for hook in hooks:
        hook.remove()
    return found


def plain_names(sym, model):
    """Taps that are modules called once."""
    return [n for n in sym.features if n in dict(model.named_modules())]


@pytest.mark.parametrize("name", zoo.ZOO)
def test_features_move_as_their_layouts_say(name):
    model, args, sym = zoo.found(name)
    names = plain_names(sym, model)
    assert names or name in SILENT or not sym.spaces
    before = outputs_of(model, names, args)
    for kind in ("permutation", "scale", "sign", "linear"):
        g = admissible(sym, sym.random(1, {kind}, scale_std=0.3), tensors_of(model))
        after = outputs_of(sym.act(g, model), names, args)
        for tapped, x in before.items():
            y = after[tapped]
            if isinstance(x, torch.Tensor):
                error = (transform(x, sym.features[tapped], g) - y).abs().max()
                assert error <= 1e-8 * y.abs().max().clamp_min(1e-12), (tapped, kind)
