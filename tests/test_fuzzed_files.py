"""Files of anyone, changed at random: every reader gives a result or an error of the library's own, soon and small."""

import copy
import io
import json
import os
import pickle
import resource
import shutil
import tarfile
import traceback
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import intertwine as iw
from intertwine._io.files import read_tensors
from intertwine._io.lazy import StoredState, write_shards
from intertwine.errors import IntertwineError
from intertwine.lab.data.concept_files import CocoConcepts
from intertwine.lab.data.concepts import load_concepts
from intertwine.lab.data.load import load
from intertwine.lab.data.pictures import Preprocessing
from intertwine.lab.data.tables import TextBlocks
from intertwine.lab.networks.hugging_face import load_pretrained
from intertwine.lab.networks.registry import build
from intertwine.lab.runs.job import load_plan
from intertwine.lab.runs.store import read_log
from intertwine.lab.training.checkpoint import Card, load_checkpoint, save_checkpoint
from intertwine.lab.zoo import read_zoo
from intertwine.merging.recipe import read_recipe
from intertwine.report.write import load_result, page_of
from intertwine.symmetry import transformation

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))  # for each reader; thousands make minutes
SECONDS, BYTES = 30, 1 << 30  # that one file may take
HOSTILE = (None, True, -1, 0, 3, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "\0", "../..", "é" * 999, "F64", [], {},
           [[]], {"": {}}, [0, 2**40], [-1, 3], "hf:x", "intertwine.symmetry:Job", {"kind": "Match"})  # fmt: skip
BLOCKS = (b"\0", b"\xff" * 8, b"[" * 4000, b'{"a":', b"\x80\x04", b"PK\3\4", b"PAR1", b"NaN", b"\x7f" + b"\xff" * 7)


def image(kind: str) -> bytes:
    held = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(held, kind)
    return held.getvalue()


def network() -> nn.Module:
    return build("mlp:shape=4,widths=6-5,classes=3")


def made_checkpoint(folder: Path) -> None:
    save_checkpoint(
        folder / "a.safetensors",
        network(),
        Card(architecture="mlp:shape=4,widths=6-5,classes=3", data="digits", seed=0),
    )


def made_torch(folder: Path) -> None:
    torch.save(network().state_dict(), folder / "a.pt")


def made_shards(folder: Path) -> None:
    state = {name: t.detach() for name, t in network().state_dict().items()}
    write_shards(folder / "model", state, shard_bytes=100)


def made_npz(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.zeros((20, 4), np.float32), y=np.arange(20) % 3)


def made_parquet(folder: Path) -> None:
    rows = [{"bytes": image("PNG"), "path": None}] * 60
    pq.write_table(pa.table({"image": rows, "label": [k % 3 for k in range(60)]}), folder / "a.parquet")


def made_texts(folder: Path) -> None:
    pq.write_table(pa.table({"text": ["some words"] * 40}), folder / "a.parquet")


def made_images(folder: Path) -> None:
    for k, kind in enumerate(("PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP") * 6):
        place = folder / f"{k % 2}" / f"{k}.{kind.lower()}"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(image(kind))


def made_cifar(folder: Path) -> None:
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        names = {b"label_names": [str(k) for k in range(10)]}
        rows = {b"data": np.zeros((40, 3072), np.uint8), b"labels": [*range(10)] * 4}
        batches = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
        for name, held in [("batches.meta", names), *((b, rows) for b in batches)]:
            raw, said = pickle.dumps(held, 2), tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            said.size = len(raw)
            archive.addfile(said, io.BytesIO(raw))


def made_result(folder: Path) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    iw.same(network(), network(), x[:, :4]).save(folder / "a.json")


def made_element(folder: Path) -> None:
    sym = iw.symmetries(network(), torch.zeros(2, 4))
    sym.random(0).save(folder / "a.safetensors")


def made_recipe(folder: Path) -> None:
    (folder / "one").mkdir()
    (folder / "a.yml").write_text("merge_method: linear\nmodels:\n- {model: one, parameters: {weight: 0.5}}\n"
                                  "- {model: one, parameters: {weight: 0.5}}\ndtype: float32\n")  # fmt: skip


def made_log(folder: Path) -> None:
    said = [{"key": "a", "label": "b", "state": "done", "attempts": 1, "seconds": 1.0, "error": "", "worker": ""}]
    (folder / "log.json").write_text(json.dumps(said))


def made_plan(folder: Path) -> None:
    tile = {"layer": "a", "rows": [["a", "b"]], "columns": [["c", "d"]], "measures": ["linear_cka"], "seed": 0,
            "shuffled": True, "intervals": True}  # fmt: skip
    said = {"name": folder.name, "listed": [{"job": "intertwine.lab.tiles:ScoredTile", "settings": {"tile": tile}}]}
    (folder / "plan.json").write_text(json.dumps(said))


def made_pretrained(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=9)).save_pretrained(folder)


def made_coco(folder: Path) -> None:
    (folder / "a.png").write_bytes(image("PNG"))
    said = {
        "images": [{"id": 1, "file_name": "a.png", "height": 8, "width": 8}],
        "annotations": [{"image_id": 1, "category_id": 2, "segmentation": [[0, 0, 3, 0, 3, 3]]}],
        "categories": [{"id": 2, "name": "cat", "supercategory": "animal"}],
    }
    (folder / "a.json").write_text(json.dumps(said))


def made_gguf(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf", reason="GGUF files are read by gguf")
    from gguf_files import write_llama

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=9))
    model.save_pretrained(folder)
    write_llama(folder / "a.gguf", model, "Q8_0")


def made_masks(folder: Path) -> None:
    for part in ("images", "masks"):
        (folder / part).mkdir()
        (folder / part / "a.png").write_bytes(image("PNG"))
    (folder / "labels.txt").write_text("\n".join(map(str, range(64))))


READERS = {
    "masks": (made_masks, lambda f: load_concepts(f"masks:{f}")[0]),
    "checkpoint": (made_checkpoint, lambda f: load_checkpoint(f / "a.safetensors")),
    "weights": (made_checkpoint, lambda f: read_tensors(f / "a.safetensors")),
    "zoo": (made_checkpoint, read_zoo),
    "torch file": (made_torch, lambda f: read_tensors(f / "a.pt")),
    "shards": (made_shards, lambda f: [*StoredState(f / "model").values()]),
    "npz": (made_npz, lambda f: load(f"npz:{f}/a.npz")),
    "parquet": (made_parquet, lambda f: load(f"parquet:{f}/a.parquet")),
    "texts": (made_texts, lambda f: load(f"parquet:{f}/a.parquet", TextBlocks("bytes", 16))),
    "images": (made_images, lambda f: load(f"images:{f}", Preprocessing((8, 8), 8))),
    "cifar": (made_cifar, lambda f: load(f"cifar10:{f}")),
    "result": (made_result, lambda f: page_of(load_result(f / "a.json"))),
    "element": (made_element, lambda f: transformation.load(f / "a.safetensors")),
    "recipe": (made_recipe, lambda f: read_recipe(f / "a.yml")),
    "log": (made_log, lambda f: read_log(f / "log.json")),
    "plan": (made_plan, load_plan),
    "pretrained": (made_pretrained, load_pretrained),
    "coco": (made_coco, lambda f: CocoConcepts(f / "a.json", f)[0]),
    "gguf": (made_gguf, lambda f: read_tensors(f / "a.gguf")),
    "gguf of a model": (made_gguf, lambda f: load_pretrained(f, None, f / "a.gguf")),
}


FOUND = {  # by this attack, once
    "a list that is none": ("plan", lambda raw: b'{"name": "run", "listed": true}'),
    "other settings": ("plan", lambda raw: raw.replace(b'"seed"', b'"seeds"')),
    "names in another code": ("masks", lambda raw: b"\xff" + raw),
    "an opcode of an empty stack": ("torch file", lambda raw: b"\x80\x02s."),
}


def changed_json(draw: st.DataObject, said: object) -> object:
    """A value somewhere inside replaced, removed or repeated."""
    said = copy.deepcopy(said)
    places = []

    def visit(x: object) -> None:
        for key in [*x] if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
            places.append((x, key))
            visit(x[key])

    visit(said)
    for _ in range(draw.draw(st.integers(1, 3))):
        if not places:
            return draw.draw(st.sampled_from(HOSTILE))
        holder, key = draw.draw(st.sampled_from(places))
        if key in holder if isinstance(holder, dict) else key < len(holder):
            new = draw.draw(st.one_of(st.sampled_from(HOSTILE), st.sampled_from([h[k] for h, k in places if k in h])))
            holder[key] = copy.deepcopy(new) if draw.draw(st.booleans()) else str(new)
    return said


def changed_bytes(draw: st.DataObject, raw: bytes) -> bytes:
    """Some bytes replaced, removed, inserted, or the rest cut off."""
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(raw)))
        length = draw.draw(st.sampled_from((0, 1, 4, 8, 64)))
        block = draw.draw(st.one_of(st.sampled_from(BLOCKS), st.binary(max_size=8)))
        raw = raw[:at] + block + (raw[at + length :] if draw.draw(st.integers(0, 9)) else b"")
    return raw


def changed(draw: st.DataObject, path: Path) -> bytes:
    """What a file holds after a change that its format knows, or of bytes alone."""
    raw = path.read_bytes()
    if draw.draw(st.integers(0, 3)):
        if path.suffix == ".json":
            return json.dumps(changed_json(draw, json.loads(raw))).encode()
        if path.suffix == ".safetensors":
            size = int.from_bytes(raw[:8], "little")
            header = json.dumps(changed_json(draw, json.loads(raw[8 : 8 + size]))).encode()
            return len(header).to_bytes(8, "little") + header + raw[8 + size :]
    return changed_bytes(draw, raw)


def clear(error: Exception) -> bool:
    """An error of the library, or one of the usual kinds that a line of the library raises with words of its own."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(frame.filename).is_relative_to(Path(iw.__file__).parent) and "raise" in (frame.line or "")
    return isinstance(error, IntertwineError) or (ours and isinstance(error, ValueError | TypeError | RuntimeError))


@pytest.mark.parametrize("change", FOUND)
def test_files_that_were_found(change, tmp_path):
    (make, read), change_of = READERS[FOUND[change][0]], FOUND[change][1]
    folder = tmp_path / "run"
    folder.mkdir()
    make(folder)
    (file,) = (f for f in folder.iterdir() if f.is_file())
    file.write_bytes(change_of(file.read_bytes()))
    with pytest.raises(ValueError, match="must") as caught:
        read(folder)
    assert clear(caught.value)


@pytest.mark.parametrize("reader", READERS)
def test_changed_files(reader, tmp_path):
    make, read = READERS[reader]
    folder, good = tmp_path / "run", tmp_path / "good"
    folder.mkdir()
    make(folder)
    read(folder)  # what is not changed reads
    shutil.copytree(folder, good)
    files = sorted(f.relative_to(good) for f in good.rglob("*") if f.is_file())

    @settings(
        max_examples=EXAMPLES, derandomize="FUZZ_EXAMPLES" not in os.environ, deadline=1000 * SECONDS, database=None,
        suppress_health_check=[*HealthCheck],
    )  # fmt: skip
    @given(st.data())
    def attack(draw):
        file = draw.draw(st.sampled_from(files))
        (folder / file).write_bytes(changed(draw, good / file))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(folder)
        except Exception as error:
            if not clear(error):
                raise
        finally:
            shutil.copy(good / file, folder / file)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attack()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES
