"""GGUF files beside their models: read, compared under other names, and refused in one line where they are damaged."""

import struct
import sys

import pytest
import torch

import intertwine as iw
from intertwine._io import read_tensors
from intertwine.errors import CheckpointError, MissingExtraError
from intertwine.symmetry import StoredState

SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    pytest.importorskip("gguf", reason="GGUF files are read by gguf")
    transformers = pytest.importorskip("transformers")
    from gguf_files import write_llama

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, intermediate_size=96, vocab_size=64)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "norm" in name:
                x.add_(torch.rand_like(x))  # told apart by what they hold
    model.save_pretrained(folder / "model")
    for format in ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_1"):
        write_llama(folder / f"{format}.gguf", model, format)
    return folder, model


def test_tensors_have_the_names_shapes_and_numbers_of_the_file(llama):
    folder, model = llama
    held = StoredState(folder / "F32.gguf")
    assert torch.equal(held["token_embd.weight"], model.model.embed_tokens.weight)
    assert held.headers() == {name: (tuple(x.shape), x.dtype) for name, x in held.items()}
    halves = read_tensors(folder / "BF16.gguf")["blk.0.ffn_down.weight"]
    assert torch.equal(halves, model.model.layers[0].mlp.down_proj.weight.bfloat16())
    rounded = read_tensors(folder / "Q8_0.gguf")["blk.0.ffn_down.weight"]
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, halves.float(), rtol=0, atol=float(halves.abs().max()) / 127)


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("F32", "all weights are equal"),
        ("F16", "rounding to float16 explains"),
        ("Q5_0", "tensors of b: int5, one step for 32 entries"),
        ("Q4_1", "tensors of b: int4 with a zero point, one step for 32 entries"),
    ],
)
def test_same_reads_the_file_into_the_other_sides_model(run, llama, format, said):
    """As it is, rounded, and with levels of two kinds; those of int8 and int4 are read by the tests below."""
    folder, _ = llama
    assert said in run.done("same", str(folder / "model"), str(folder / f"{format}.gguf")).out


@pytest.mark.parametrize(("format", "code"), [("F32", 0), ("Q4_0", 1)])
def test_diff_reads_the_file_into_the_other_sides_model(run, llama, format, code):
    folder, _ = llama
    ran = run("diff", str(folder / "model"), str(folder / f"{format}.gguf"))
    assert ran.code == code and ("rounded to levels of int4, one step" in ran.out) == bool(code), ran.out + ran.err


def test_names_and_pairs_of_rows_are_found_by_what_the_tensors_hold(llama):
    folder, model = llama
    found = iw.diff(model, StoredState(folder / "Q8_0.gguf"), torch.zeros(1, 4, dtype=torch.long))
    said = " ".join(finding.text for finding in found.findings)
    assert "from halves to interleaved pairs of heads of 16 dimensions" in said
    assert "model.embed_tokens.weight is now token_embd.weight" in said and "levels of int8" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda raw: b"GGML" + raw[4:], "no GGUF file"),
        (lambda raw: raw[:4] + struct.pack("<I", 9) + raw[8:], "version 9"),
        (lambda raw: raw[:4] + struct.pack(">I", 3) + raw[8:], "little-endian"),
        (lambda raw: raw[:8] + struct.pack("<Q", 2**60) + raw[16:], "bytes are left"),
        (lambda raw: raw[:16] + struct.pack("<Q", 2**60) + raw[24:], "bytes are left"),
        (lambda raw: raw[:8] + struct.pack("<Q", 0) + raw[16:], "no tensor"),
        (lambda raw: raw[:-9], "does not lie within it"),
        (lambda raw: raw[:99], "bytes are left"),
        (lambda raw: raw[:9], "cut off or damaged"),
        (lambda raw: raw.replace(b"token_embd", b"\xff" * 10), "cut off or damaged"),
    ],
)
def test_damaged_headers_are_one_clear_line(llama, tmp_path, change, reason):
    (tmp_path / "a.gguf").write_bytes(change((llama[0] / "Q8_0.gguf").read_bytes()))
    with pytest.raises(CheckpointError, match=f"must be a complete GGUF file.*{reason}"):
        read_tensors(tmp_path / "a.gguf")


def test_a_missing_package_says_its_extra(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"intertwine\[gguf\]"):
        read_tensors(tmp_path / "a.gguf")
