"""Images of any size without labels, texts by a tokenizer, and saved data sets."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from lab_archives import encode, refused
from PIL import Image

from intertwine.errors import DataError
from intertwine.lab import data
from intertwine.lab.data import Preprocessing, TextBlocks
from intertwine.lab.data.pictures import Pictures


def photo(height, width, seed=0, channels=3):
    shape = (height, width, channels)[: 3 if channels > 1 else 2]
    return np.random.default_rng(seed).integers(0, 255, shape, dtype=np.uint8)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for k, (height, width) in enumerate([(20, 30), (40, 21), (25, 25), (9, 50)]):
        Image.fromarray(photo(height, width, k)).save(folder / f"{k}.png")
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "readme.txt").write_text("mine")
    return folder


def test_a_flat_folder_of_any_sizes(photos):
    refused(r"must all have one size. .* Say --size 224", f"images:{photos}")
    found = data.load(f"images:{photos}", Preprocessing.square(12))
    assert found.shape == (3, 12, 12) and not found.labelled and found.classes == ()
    assert len(found.train) == len(found.test) == len(found.split("all")) == 4
    (said,) = found.notes
    for words in ("4 images", "shorter side 12", "without labels", "broken.png", "1 file not named as images are"):
        assert words in said
    assert found.notes == data.load(f"images:{photos}", Preprocessing.square(12)).notes  # from the cache
    with pytest.raises(DataError, match="data must have labels to train on"):
        found.need_labels("to train on")


def test_class_folders_stay_strict_and_all_splits_join(photos, tmp_path):
    for k in range(20):
        folder = tmp_path / "set" / ("cat" if k % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(10 + k, 16, k)).save(folder / f"{k}.png")
    Image.fromarray(photo(5, 5)).save(tmp_path / "set" / "stray.png")
    found = data.load(f"images:{tmp_path / 'set'}", Preprocessing.square(8))
    assert len(found.split("all")) == 20 > len(found.train) and found.split("all").labels.sum() == 10
    assert "1 image beside the class folders" in found.notes[0]
    (tmp_path / "set" / "cat" / "bad.png").write_bytes(b"no image")
    refused(r"damaged one in .*bad\.png", f"images:{tmp_path / 'set'}", Preprocessing.square(8))


@pytest.mark.parametrize("size", [(300, 400), (256, 257), (250, 224), (100, 90)])
@pytest.mark.parametrize("kind", ["clip", "vit", "convnext"])
def test_sizes_are_those_of_the_processors_of_transformers(kind, size):
    transformers = pytest.importorskip("transformers")
    image = photo(*size)
    processor = {
        "clip": lambda: transformers.CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size=56),
        "vit": lambda: transformers.ViTImageProcessorPil(size={"height": 48, "width": 64}),
        "convnext": lambda: transformers.ConvNextImageProcessorPil(size={"shortest_edge": 48}, crop_pct=0.875),
    }[kind]()
    said = json.loads(processor.to_json_string())
    ours = Preprocessing.of_transformers(said)
    want = processor(image, return_tensors="pt")["pixel_values"][0]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (ours.mean, ours.std))
    got = (torch.from_numpy(ours(image)).permute(2, 0, 1) / 255 - mean) / std
    torch.testing.assert_close(got, want.float(), atol=1e-5, rtol=0)


def test_what_settings_say_and_do_not_say():
    assert Preprocessing.of_transformers({"size": {"shortest_edge": 800}}) is None  # images keep their sizes
    assert Preprocessing.of_transformers({"size": 32, "do_resize": False}) is None
    assert Preprocessing.of_transformers({"size": 32}) == Preprocessing((32, 32), (32, 32))
    timm = {"input_size": (3, 32, 32), "crop_pct": 1.0, "crop_mode": "squash", "mean": (0.5,), "std": (0.25,)}
    assert Preprocessing.of_timm(timm).resize == (32, 32)
    assert Preprocessing.of_timm(timm)(photo(40, 50)).shape == (32, 32)  # one mean, so grey
    for bad in ({"size": 10**6}, {"size": 8, "image_mean": "grey"}, {"size": 8, "resample": "cubist"}):
        with pytest.raises(DataError):
            Preprocessing.of_transformers(bad)


def test_crops_of_timm_are_rounded_and_those_of_transformers_cut():
    timm = Preprocessing.of_timm({"input_size": (3, 32, 32), "crop_pct": 1.0})
    hf = Preprocessing.of_transformers({"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": 32})
    images = [np.tile(np.arange(32 + k, dtype=np.uint8), (32, 1)) for k in range(8)]
    assert [timm(image)[0, 0] for image in images] == [0, 0, 1, 2, 2, 2, 3, 4]  # halves to even, as by torchvision
    assert [hf(image)[0, 0] for image in images] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.fixture
def tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, **{f"w{k}": k + 3 for k in range(20)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    (tmp_path / "bert").mkdir()
    made.save(str(tmp_path / "bert" / "tokenizer.json"))
    return tmp_path


def test_text_becomes_blocks_whose_labels_are_the_next_tokens(tokenizer):
    text = tokenizer / "t.txt"
    text.write_text(" ".join(f"w{k % 20}" for k in range(103)), encoding="utf-8")
    found = data.load(f"text:{text}", TextBlocks(tokenizer, max_length=9))
    everything = found.split("all")
    assert found.shape == (9,) and len(everything) == 10 and found.labelled
    assert torch.equal(everything.inputs[:, 1:], everything.labels[:, :-1])
    assert torch.equal((everything.inputs - 3 + 1) % 20 + 3, everything.labels)
    assert "10 blocks of 9 tokens" in found.notes[0]
    around = data.load(f"text:{text}", TextBlocks(tokenizer / "bert", max_length=9, next_token=False))
    assert not around.labelled and {tuple(row[[0, -1]].tolist()) for row in around.train.inputs} == {(1, 2)}


@pytest.mark.parametrize(("how", "first"), [("bytes", [98, 195, 164]), ("chars", [1, 2, 0])])
def test_text_without_a_tokenizer(tmp_path, how, first):
    (tmp_path / "t.txt").write_text("bäabäabäabäa", encoding="utf-8")
    found = data.load(f"text:{tmp_path / 't.txt'}", TextBlocks(how, max_length=3, next_token=False))
    assert found.train.inputs[0].tolist() == first and found.shape == (3,)
    refused("at least one block of 129 tokens", f"text:{tmp_path / 't.txt'}", TextBlocks(how))


def test_text_that_cannot_be_read(tokenizer):
    text = tokenizer / "t.txt"
    text.write_bytes("w1 é".encode("latin-1"))
    refused("must be in UTF-8", f"text:{text}", TextBlocks(tokenizer))
    text.write_text("w1 w2")
    refused("at least one block of 129 tokens", f"text:{text}", TextBlocks(tokenizer))
    refused("read with a model's tokenizer", f"text:{text}")
    refused(r"no tokenizer.json in .* Save it there", f"text:{text}", TextBlocks(tokenizer / "nothing"))
    (tokenizer / "tokenizer.json").write_text("{}")
    refused("must be one of the tokenizers library", f"text:{text}", TextBlocks(tokenizer))
    with pytest.raises(DataError, match="max_length must be at least 2"):
        TextBlocks(tokenizer, 1)


def save_dataset(folder, columns, features=None, shards=1):
    """Write what ``Dataset.save_to_disk`` of datasets 4 writes: Arrow streams, and their names in state.json."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = [f"data-{k:05d}-of-{shards:05d}.arrow" for k in range(shards)]
    rows = -(-len(table) // shards)
    for k, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table.slice(k * rows, rows))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def encoded(height, width, seed):
    return {"bytes": encode(photo(height, width, seed)), "path": None}


def test_a_saved_data_set_of_images(tmp_path):
    features = {"animal": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    for split, n in (("train", 20), ("test", 6)):
        images = [encoded(10 + k % 3, 12, k) for k in range(n)]
        save_dataset(tmp_path / "set" / split, {"picture": images, "animal": [k % 2 for k in range(n)]}, features, 2)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = data.load(f"dataset:{tmp_path / 'set'}", Preprocessing.square(8))
    assert found.classes == ("cat", "dog") and found.shape == (3, 8, 8)
    assert [len(found.split(key)) for key in ("train", "validation", "test", "all")] == [18, 2, 6, 26]
    save_dataset(tmp_path / "bare", {"image": images})
    assert not data.load(f"dataset:{tmp_path / 'bare'}", Preprocessing.square(8)).labelled


def test_a_saved_data_set_of_texts(tokenizer):
    save_dataset(tokenizer / "set", {"text": [" ".join(f"w{k}" for k in range(20))] * 4, "label": [0, 1, 0, 1]})
    found = data.load(f"dataset:{tokenizer / 'set'}", TextBlocks(tokenizer, max_length=7))
    assert found.shape == (7,) and len(found.split("all")) == 10
    refused("must hold images for this", f"dataset:{tokenizer / 'set'}")


def test_saved_data_sets_that_cannot_be_read(tmp_path):
    refused("must be a directory of save_to_disk", f"dataset:{tmp_path}")
    save_dataset(tmp_path / "set", {"image": [encoded(8, 8, 0)], "label": [0]})
    file = next((tmp_path / "set").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:300])
    refused("must be a complete Arrow stream", f"dataset:{tmp_path / 'set'}")
    (tmp_path / "set" / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
    refused(r"must be a file in .*leads out of it", f"dataset:{tmp_path / 'set'}")
    for said, message in (("[]", "must be an object"), ('{"_data_files": [7]}', r"_data_files\[0\] must be an object"),
                          ('{"_data_files": []}', "must name files of data. Got none")):  # fmt: skip
        (tmp_path / "set" / "state.json").write_text(said)
        refused(message, f"dataset:{tmp_path / 'set'}")
    save_dataset(tmp_path / "numbers", {"x": [1.0]})
    refused(r"image column .* or a text column", f"dataset:{tmp_path / 'numbers'}")


@pytest.fixture
def many(tmp_path):
    """Twenty images of two classes, of several sizes, one of them grey."""
    generator = np.random.default_rng(0)
    for k in range(20):
        folder = tmp_path / "many" / "ab"[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        shape = (9 + k, 12, 3) if k else (9, 12)
        Image.fromarray(generator.integers(0, 255, shape, dtype=np.uint8)).save(folder / f"{k}.png")
    return tmp_path / "many"


@pytest.mark.parametrize("labelled", [True, False])
def test_many_images_are_decoded_when_a_batch_asks_for_them(many, labelled, monkeypatch):
    from intertwine.lab.data import images

    if not labelled:
        for file in many.rglob("*.png"):
            file.rename(many / file.name)
        for folder in "ab":
            (many / folder).rmdir()
    at_once = images.load_images(many, Preprocessing.square(8))
    monkeypatch.setattr(images, "_AT_ONCE", 1)
    later = images.load_images(many, Preprocessing.square(8))
    assert isinstance(later.train.inputs, Pictures) and isinstance(at_once.train.inputs, torch.Tensor)
    assert later.shape == at_once.shape == (3, 8, 8)
    assert "decoded when a batch asks for them" in later.notes[0]
    for name in ("train", "validation", "test", "all"):
        batches = zip(*(data.loader(name, batch_size=3) for data in (later, at_once)), strict=True)
        assert all(torch.equal(x, x0) and torch.equal(y, y0) for (x, y), (x0, y0) in batches)


def test_a_damaged_image_among_many_is_named_when_it_is_read(many, monkeypatch):
    from intertwine.lab.data import images

    monkeypatch.setattr(images, "_AT_ONCE", 1)
    held = images.load_images(many, Preprocessing.square(8)).test.inputs
    held.files[0].write_bytes(b"no image")
    with pytest.raises(DataError, match=held.files[0].name):
        held[:1]
