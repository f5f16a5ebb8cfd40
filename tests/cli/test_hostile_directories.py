"""Hugging Face directories of others: nothing of theirs is run, fetched, or read from elsewhere."""

import builtins
import json
import socket
import time
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from upstream import stores_complex_numbers

from intertwine._io.lazy import StoredState
from intertwine.cli.inputs.models import build_model
from intertwine.errors import CheckpointError
from intertwine.lab.networks.hugging_face import load_pretrained

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    folder = tmp_path_factory.mktemp("plain") / "vit"
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def directory(plain, tmp_path):
    """A directory to tamper with; its code would leave a file behind."""
    folder = tmp_path / "vit"
    folder.mkdir()
    for file in plain.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    canary = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass C: pass\nclass M: pass\n"
    for name in ("evil.py", "configuration_evil.py", "modeling_evil.py"):
        (folder / name).write_text(canary)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(canary)
    return folder


@pytest.fixture(autouse=True)
def _nothing_happens(monkeypatch, tmp_path):
    """No question on standard input, no connection, and no code of the directory."""

    def refuse(*_, **__):
        raise AssertionError("this must not be asked for")

    monkeypatch.setattr(builtins, "input", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not (tmp_path / "ran").exists()


def tamper(directory, **settings):
    file = directory / "config.json"
    found = json.loads(file.read_text())
    for key, value in settings.items():
        found[key] = value
    file.write_text(json.dumps({k: v for k, v in found.items() if v != "absent"}))


MAP = {"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoModelForImageClassification": "other/repo--evil.M"}


@pytest.mark.parametrize("kind", ["mine", "absent", None, 5, ["vit"]])
def test_code_for_an_unknown_model_is_one_clear_error(directory, kind):
    tamper(directory, model_type=kind, auto_map=MAP, architectures=["EvilModel"])
    for attempt in (lambda: build_model(f"hf:{directory}"), lambda: load_pretrained(directory)):
        with pytest.raises(
            CheckpointError, match=r"config\.json must be of a model that transformers .* never run"
        ) as e:
            attempt()
        assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_map": MAP},
        {"custom_generate": "evil", "transformers_weights": "../other.safetensors"},
        {"configuration_files": ["config.4.0.0.json"]},
        {"attn_implementation": "flash_attention_2", "experts_implementation": "sonicmoe"},
        {"attn_implementation": "eager"},
        {"kernel_config": {"kernel_mapping": {"RMSNorm": "evil/repo:Norm"}}, "use_kernels": True},
        {"fusion_config": {"x": True}, "_commit_hash": "main", "name_or_path": "evil/repo"},
    ],
)
def test_known_models_are_read_as_data(directory, plain, settings):
    (directory / "config.4.0.0.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "evil.C"}}')
    (directory / "generation_config.json").write_text('{"custom_generate": "evil"}')
    tamper(directory, **settings)
    model = load_pretrained(directory)
    assert type(model).__module__.startswith("transformers.models.vit.")
    weights = load_file(plain / "model.safetensors")
    state = model.state_dict()
    assert all(torch.equal(state[k], w) for k, w in weights.items() if k in state)
    assert build_model(f"hf:{directory}").config.hidden_size == 8


@pytest.mark.parametrize("named", [["EvilModel"], ["pipeline"], ["Trainer"], None, ["dynamic_module_utils"]])
def test_only_classes_of_models_are_built(directory, named):
    tamper(directory, architectures=named, auto_map=MAP)
    assert type(build_model(f"hf:{directory}")).__name__ == "ViTModel"
    with pytest.raises(CheckpointError, match="architecture"):  # its head has weights too
        load_pretrained(directory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attn_implementation": "evil/repo"}, r"attn_implementation .*evil/repo.*no such code is run"),
        ({"_attn_implementation": "evil/repo@main:kernel"}, "_attn_implementation"),
        ({"_attn_implementation_internal": "evil/repo"}, "_attn_implementation_internal"),
        ({"attn_implementation": {"": "sdpa", "vision": "evil/repo"}}, "evil/repo"),
        ({"experts_implementation": "evil/repo"}, "experts_implementation"),
        ({"vision_config": {"_attn_implementation": "paged|evil/repo"}}, "evil/repo"),
        ({"quantization_config": {"quant_method": "fp8"}}, "plain weights"),
        ({"vision_config": {"quantization_config": {"quant_method": "mxfp4"}}}, "plain weights"),
        ({"backbone": "hf-hub:evil/repo"}, "nothing outside"),
        ({"architecture": "hf_hub:evil/repo"}, "nothing outside"),
        ({"backbone_config": {"backbone": "local-dir:/tmp/x"}}, "nothing outside"),
        ({"encoder": {"model_type": "vit", "path": "https://evil.example/x"}}, "nothing outside"),
    ],
)
def test_kernels_and_other_places_are_refused(directory, settings, message):
    tamper(directory, **settings)
    for attempt in (lambda: build_model(f"hf:{directory}"), lambda: load_pretrained(directory)):
        with pytest.raises(CheckpointError, match=message):
            attempt()


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 10**6}, {"num_hidden_layers": 10**15}, {"num_labels": 10**9},
        {"intermediate_size": 10**12}, {"hidden_size": 2**24}, {"image_size": 2**24, "patch_size": 1},
        {"depths": [3, 10**7]},
    ],
)  # fmt: skip
def test_sizes_that_no_machine_holds_are_refused_at_once(directory, settings):
    tamper(directory, **settings)
    for attempt in (lambda: build_model(f"hf:{directory}"), lambda: load_pretrained(directory)):
        start = time.perf_counter()
        with pytest.raises(CheckpointError, match=r"must be at most|must fit in memory"):
            attempt()
        assert time.perf_counter() - start < 5


def test_configurations_that_are_none(directory):
    for text in ("[]", "7", "{", "[" * 100_000, "\x00", '{"model_type": {}}'):
        (directory / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json.* must be"):
            load_pretrained(directory)


def shard(directory, names):
    """Split the weights over shards of these names."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    table = {}
    for i, (key, value) in enumerate(sorted(tensors.items())):
        table.setdefault(names[i % len(names)], {})[key] = value
    for name, part in table.items():
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        save_file(part, file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {k: name for name, part in table.items() for k in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_beside_their_index_are_read(directory, plain):
    shard(directory, ["one.safetensors", "two.safetensors"])
    (directory / "._model.safetensors.index.json").write_text("\x00Mac OS X")
    found, wanted = (load_pretrained(d).state_dict() for d in (directory, plain))
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "sub/../../outside.safetensors", "{absolute}", "sub/in.safetensors"]
)
def test_shards_elsewhere_are_refused(directory, tmp_path, name):
    (directory / "sub").mkdir()
    shard(directory, [name.format(absolute=tmp_path / "outside.safetensors")])
    with pytest.raises(CheckpointError, match="weight_map must name files beside the index"):
        load_pretrained(directory)


def test_a_shard_of_a_name_too_long_for_a_file_is_refused(tmp_path):
    table = {"weight": "s" * 300}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    with pytest.raises(CheckpointError, match="shard must be an existing file"):
        StoredState(tmp_path)


def test_links_out_of_the_directory_are_refused_and_those_of_a_cache_are_followed(plain, tmp_path):
    for folder, refused in ((tmp_path / "model", True), (tmp_path / "cache" / "snapshots" / "0f", False)):
        folder.mkdir(parents=True)
        blobs = folder.parent.parent / "blobs"
        blobs.mkdir()
        for k, file in enumerate(plain.iterdir()):
            (blobs / str(k)).write_bytes(file.read_bytes())
            (folder / file.name).symlink_to(blobs / str(k))
        (folder / "config.json").unlink()
        (folder / "config.json").write_bytes((plain / "config.json").read_bytes())
        if refused:
            with pytest.raises(CheckpointError, match="leads out of it"):
                load_pretrained(folder)
        else:
            assert load_pretrained(folder).num_labels == 3


def test_an_adapter_and_pickled_weights_are_not_loaded(directory, tmp_path):
    weights = directory / "model.safetensors"
    weights.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(
        CheckpointError, match=r"must hold safetensors weights.*with pytorch_model\.bin. Give .* itself"
    ):
        load_pretrained(directory)
    (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/repo", "peft_type": "LORA"}')
    with pytest.raises(
        CheckpointError, match=r"base_model_name_or_path .* must be a directory .* Nothing is downloaded.*hf download"
    ):
        load_pretrained(directory)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.complex64, marks=stores_complex_numbers), torch.int32, torch.bool], ids=str
)
def test_weights_of_another_kind_are_not_cast(directory, dtype):
    tensors = load_file(directory / "model.safetensors")
    name = next(k for k in tensors if k.endswith("weight"))
    changed = (tensors[name] * (1 + 5j if dtype.is_complex else 1)).to(dtype)
    save_file({**tensors, name: changed}, directory / "model.safetensors", {"format": "pt"})
    with (
        pytest.raises(CheckpointError, match=r"must hold real numbers in .*casting would change them silently"),
        warnings.catch_warnings(action="ignore"),
    ):
        load_pretrained(directory)
