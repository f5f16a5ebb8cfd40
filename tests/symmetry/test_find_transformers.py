"""Tiny random models of many transformers architectures: found from configurations, the function kept."""

import pytest
import torch
import transformers_zoo as hf_zoo
from upstream import runs_on_meta, since

from intertwine import same
from intertwine._nested import answers
from intertwine.symmetry import symmetries
from intertwine.testing import function_error

pytest.importorskip("transformers", reason="needs the [hf] extra")
# what the models' own code computes in lower precision than their weights bounds what can be seen
ROUNDING = {torch.float64: 1e-12, torch.float32: 5e-6}


OLDER = {"CLIPModel": since("transformers", "5.0", "the mask of a CLIP's texts is of their own precision")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=OLDER.get(name, ())) for name in hf_zoo.MAKERS])
def test_function_is_kept(name):
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    model = model.double()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    sym = symmetries(model, inputs)
    assert sym.spaces and set(dict(model.named_parameters())) <= set(sym.layouts)
    for kind in ("permutation", "scale", "sign", "linear"):
        twin = sym.act(sym.random(1, kinds={kind}), model)
        assert function_error(model, twin, inputs) < ROUNDING[sym.dtype], kind


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", pytest.param("CLIPModel", marks=OLDER["CLIPModel"])])
def test_logits_say_what_a_network_is_and_not_the_hidden_states_beside_them(name):
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    sym = symmetries(model, inputs)
    assert any("besides the logits" in note for note in sym.notes)
    twin = sym.act(sym.random(1, kinds={"permutation"}), model)
    before, after = model(**inputs), twin(**inputs)
    hidden = lambda out: out["text_model_output"][0] if "text_model_output" in out else out.encoder_last_hidden_state
    assert not torch.allclose(hidden(before), hidden(after), atol=1e-2)
    assert same(model, twin, inputs).verdict == "the same network up to symmetry"


def test_boxes_beside_logits_are_part_of_the_answer():
    from transformers.models.detr.modeling_detr import DetrObjectDetectionOutput

    x = torch.ones(2)
    fields = {"logits": x, "pred_boxes": x, "last_hidden_state": x, "encoder_hidden_states": (x, x)}
    assert answers(DetrObjectDetectionOutput(**fields)).keys() == {"logits", "pred_boxes"}
    assert answers(fields) is fields  # of one's own code: all of it


@runs_on_meta
def test_a_large_language_model_is_read_without_weights():
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(hidden_size=4096, num_hidden_layers=8, intermediate_size=11008))
    tokens = torch.zeros(2, 8, dtype=torch.long, device="meta")
    sym = symmetries(model, {"input_ids": tokens, "use_cache": False})
    heads = [s for s in sym.spaces if s.group.is_general]
    assert len(heads) == 8 and all(s.size == 128 and s.parents for s in heads) and not sym.path_only
    with torch.device("meta"):
        assert sym.dim > 8 * 32 * 128**2
