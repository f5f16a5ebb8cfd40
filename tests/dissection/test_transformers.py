"""Hugging Face models: ConvNeXt's maps, and a vision transformer's patch grid."""

import pytest
import torch

from intertwine.dissection import Bases, Criterion, Maps, TensorConcepts, dissect

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")


@pytest.fixture
def data():
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(-1, 3, (6, 4, 4), generator=torch.Generator().manual_seed(1))
    return TensorConcepts(images, labels.repeat_interleave(8, 1).repeat_interleave(8, 2), ["a", "b", "c"])


def test_convnext(data):
    config = transformers.ConvNextConfig(num_stages=2, hidden_sizes=[8, 16], depths=[1, 2], num_labels=3)
    model = transformers.ConvNextForImageClassification(config).eval()
    stage = next(n for n, _ in model.named_modules() if n.endswith("stages.1"))
    found = dissect(model, stage, data, Bases([0, 1], 2), pictures=0, criterion=Criterion(quantile=0.1))
    assert found.units == 16
    assert found.unchanged is True


def test_vision_transformer_with_a_class_token(data):
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    model = transformers.ViTModel(config).eval()
    found = dissect(model, "layernorm", data, Bases([0, 1], 2), pictures=1, criterion=Criterion(quantile=0.1))
    assert found.units == 12
    assert found.unchanged is True
    with pytest.raises(ValueError, match="grid must have at most T = 17 patches"):
        dissect(model, "layernorm", data, Bases([0]), maps=Maps(grid=(5, 4)))
