"""GGUF files as llama.cpp writes them: with its own names, and Llama's queries and keys in neighbouring pairs."""

import pytest

gguf = pytest.importorskip("gguf")


def _in_neighbours(rows, heads):
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_llama(path, model, format="F32"):
    """A Llama of transformers, its matrices in a format."""
    writer, c = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_token_list([f"é{k}" for k in range(c.vocab_size)])
    writer.add_name("tiny")  # transformers 4 asks for one
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        x = tensor.numpy()
        for part, heads in (("q_proj", c.num_attention_heads), ("k_proj", c.num_key_value_heads)):
            x = _in_neighbours(x, heads) if part in name else x
        kind = gguf.GGMLQuantizationType[format if x.ndim > 1 else "F32"]
        writer.add_tensor(names.get_name(name, (".weight",)), gguf.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
