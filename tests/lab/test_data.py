"""Splits, batches, and every layout that data comes in."""

import os
import pickle
import shutil
from pathlib import Path

import lab_archives as made
import numpy as np
import pytest
import torch
from lab_archives import refused
from PIL import Image

from intertwine.errors import DataError
from intertwine.lab import data, training
from intertwine.lab.data import Split, make_splits, pictures
from intertwine.lab.data.load import read_array_pickle
from intertwine.lab.data.pictures import pixels


def toy(n=60, classes=3, shape=(1, 4, 4)):
    return Split(torch.rand(n, *shape), torch.arange(n) % classes)


def as_tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2)


# --- splits --------------------------------------------------------------------------------------


def test_digits_are_split_by_class_and_always_the_same():
    a, b = data.load("digits"), data.load()
    assert (len(a.train), len(a.validation), len(a.test)) == (1295, 143, 359)
    assert torch.equal(a.test.inputs, b.test.inputs)
    assert torch.equal(a.validation.labels, b.validation.labels)
    for split in (a.train, a.validation, a.test):
        shares = split.labels.bincount() / len(split)
        assert float((shares - 0.1).abs().max()) < 0.02
    assert a.shape == (1, 8, 8)


def test_splits_partition_the_examples():
    x = torch.arange(100.0).view(100, 1, 1, 1)
    splits = make_splits("numbers", Split(x, torch.arange(100) % 4))
    parts = [split.inputs.flatten() for split in (splits.train, splits.validation, splits.test)]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(100.0))


def test_a_given_test_split_is_never_held_out_from():
    train, test = toy(60), toy(30)
    splits = make_splits("toy", train, test=test)
    assert splits.test is test
    assert len(splits.train) + len(splits.validation) == 60


def test_moments_are_those_of_the_training_split_alone():
    splits = make_splits("toy", Split(torch.randint(0, 256, (90, 3, 5, 5), dtype=torch.uint8), torch.arange(90) % 3))
    x = splits.train.inputs.double() / 255
    torch.testing.assert_close(torch.tensor(splits.mean, dtype=torch.float64), x.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(splits.std, dtype=torch.float64), x.std((0, 2, 3), correction=0))


def test_batches_are_normalised_and_complete():
    splits = data.load("digits")
    loader = splits.loader("train", batch_size=100)
    x = torch.cat([inputs for inputs, _ in loader]).double()
    assert len(loader) == 13
    assert len(x) == 1295
    assert abs(float(x.mean())) < 1e-5
    assert abs(float(x.std(correction=0)) - 1) < 1e-5


def test_a_constant_channel_is_left_alone():
    splits = make_splits("flat", Split(torch.full((40, 1, 2, 2), 0.5), torch.arange(40) % 2))
    inputs, _ = next(iter(splits.loader("train")))
    assert splits.std == (1.0,)
    assert not inputs.any()
    tenths = torch.full((99, 2), 0.1, dtype=torch.float64)  # whose mean is rounded
    assert make_splits("flat", Split(tenths, torch.arange(99) % 2)).std == (1.0, 1.0)


def test_shuffling_is_seeded_new_each_pass_and_keeps_pairs():
    splits = make_splits("numbers", Split(torch.arange(50.0).view(50, 1), torch.arange(50) % 5), test=toy(5, 5, (1,)))
    loader = splits.loader("train", 7, shuffle=True, generator=torch.Generator().manual_seed(1))
    first, second = (torch.cat([y for _, y in loader]) for _ in range(2))
    again = torch.cat([y for _, y in splits.loader("train", 7, True, torch.Generator().manual_seed(1))])
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    mean, std = splits.mean[0], splits.std[0]
    for x, y in loader:
        assert torch.equal((x[:, 0] * std + mean).round().long() % 5, y)


def test_examples_limits_a_split():
    loader = data.load("digits").loader("test", batch_size=20, examples=30)
    assert [len(y) for _, y in loader] == [20, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "split must be train, validation, test or all. Got 'dev'"),
        ({"batch_size": 0}, "batch_size must be at least 1. Got 0"),
        ({"examples": 0}, "examples must be at least 1. Got 0"),
    ],
)
def test_loader_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load("digits").loader(**arguments)


@pytest.mark.parametrize(
    ("split", "classes", "message"),
    [
        (Split(torch.rand(0, 1, 2, 2), torch.zeros(0, dtype=torch.int64)), None, "at least one example in train"),
        (Split(torch.rand(4, 1, 2, 2), torch.zeros(3, dtype=torch.int64)), None, "Got 4 inputs and 3 labels"),
        (Split(torch.rand(9, 1, 2, 2), torch.arange(9)), ("a", "b"), "must be 0 to 1. Got 0 to 8"),
        (Split(torch.rand(9, 1, 2, 2), torch.arange(9) - 1), None, "must be 0 or more. Got -1 to 7"),
        (Split(torch.rand(2, 1, 2, 2), torch.arange(2)), None, "hold out 20% of it. Got 2 examples of 2 classes"),
    ],
)
def test_bad_examples_are_refused(split, classes, message):
    with pytest.raises(DataError, match=message):
        make_splits("toy", split, classes=classes)


def test_one_class_is_data_but_nothing_to_train_on():
    splits = make_splits("toy", Split(torch.rand(40, 1, 2, 2), torch.ones(40, dtype=torch.int64)))
    assert len(splits.split("all")) == 40
    splits.need_labels("to measure losses")
    with pytest.raises(DataError, match=r"at least two classes to train on\. Got one: label 1"):
        training.train("mlp:widths=4", splits, progress=False)


def test_splits_of_different_shapes_are_refused():
    with pytest.raises(DataError, match=r"Got \(1, 4, 4\) in train and \(1, 5, 5\) in test"):
        make_splits("toy", toy(), test=toy(shape=(1, 5, 5)))


@pytest.mark.parametrize("spec", ["mnist", "digits:5", "npz", "parquet:", ""])
def test_unknown_forms_are_listed(spec):
    with pytest.raises(ValueError, match=r"data must be one of digits, cifar10\[:PATH\].*images:DIR"):
        data.load(spec)


# --- CIFAR ---------------------------------------------------------------------------------------


@pytest.fixture
def official(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, raw in made.official_files().items():
        (folder / name).write_bytes(raw)
    return folder


def test_the_official_folder_and_archive_hold_the_same(official, tmp_path):
    archive = tmp_path / "elsewhere" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    made.write_archive(archive, made.official_files(), "cifar-10-batches-py")
    places = [official, official.parent, archive, archive.parent]
    loaded = [data.load(f"cifar10:{place}") for place in places]
    for splits in loaded:
        assert torch.equal(splits.test.inputs, as_tensor(made.pixels(20, 5)))
        assert splits.classes == tuple(made.NAMES)
        assert torch.equal(splits.train.inputs, loaded[0].train.inputs)
    assert (len(loaded[0].train), len(loaded[0].validation)) == (90, 10)


def test_cifar100_has_its_fine_labels(tmp_path):
    made.write_archive(tmp_path / "cifar-100-python.tar.gz", made.official_files(hundred=True), "cifar-100-python")
    splits = data.load(f"cifar100:{tmp_path}")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (900, 100, 1000)
    assert splits.classes[99] == "class 99"
    assert torch.equal(splits.test.labels, torch.arange(1000) % 100)


def test_cifar_parquet(tmp_path):
    images = made.pixels(40)
    encoded = [made.encode(image) for image in images]
    made.write_parquet(tmp_path / "train.parquet", encoded, [i % 4 for i in range(40)])
    made.write_parquet(tmp_path / "test.parquet", encoded[:10], [i % 4 for i in range(10)])
    splits = data.load(f"cifar10:{tmp_path}")
    assert splits.name == "cifar10"
    assert torch.equal(splits.test.inputs, as_tensor(images[:10]))


def test_without_a_path_the_environment_then_the_home_cache_are_searched(official, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("INTERTWINE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"Download cifar-10-python.tar.gz from https://www.cs.toronto.edu") as caught:
        data.load("cifar10")
    assert str(tmp_path / "nothing" / "cifar10") in str(caught.value)
    home = tmp_path / "home" / ".cache" / "intertwine"
    home.mkdir(parents=True)
    official.rename(home / "cifar-10-batches-py")
    assert len(data.load("cifar10").test) == 20


def test_parquet_files_of_something_else_beside_cifar_are_not_taken_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("INTERTWINE_DATA", str(tmp_path))
    made.write_parquet(tmp_path / "train.parquet", [made.encode(made.pixels(1)[0])] * 4, [0, 1, 0, 1])
    refused("cifar100 must be on this machine", "cifar100")


def test_an_incomplete_folder_and_archives_are_refused(official, tmp_path):
    (official / "data_batch_3").unlink()
    refused("must hold data_batch_3", f"cifar10:{official}")
    files = made.official_files()
    del files["test_batch"]
    made.write_archive(tmp_path / "part.tar.gz", files, "x")
    refused("must hold test_batch", f"cifar10:{tmp_path / 'part.tar.gz'}")
    whole = (tmp_path / "part.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    refused(r"complete cifar-10-python.tar.gz. Got .*cut.tar.gz', \d+ bytes", f"cifar10:{tmp_path / 'cut.tar.gz'}")


def test_a_batch_of_the_wrong_shape_is_refused(official):
    content = {b"data": np.zeros((20, 100), np.uint8), b"labels": [0] * 20}
    (official / "data_batch_1").write_bytes(pickle.dumps(content, protocol=2))
    refused(r"data_batch_1 must hold images as \(N, 3072\).*Got \(20, 100\)", f"cifar10:{official}")


class _Runs:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize(
    "content",
    [
        {b"data": _Runs(), b"labels": []},
        {b"data": Path("x")},
        {b"data": np.array([_Runs], dtype=object)},
        {b"data": np.zeros(3, np.float64)},
    ],
    ids=["system", "path", "object array", "float array"],
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickles_that_hold_more_than_bytes_are_refused_and_never_run(content, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"evil: (pickle must hold plain|pickled arrays must)"):
        read_array_pickle(pickle.dumps(content, protocol), "evil")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_restricted_reader_agrees_with_pickle_on_plain_files(protocol, order):
    content = {b"data": np.asarray(made.rows_of_planes(made.pixels(3)), order=order), b"labels": [1, 2, 3]}
    read = read_array_pickle(pickle.dumps(content, protocol), "plain")
    assert np.array_equal(read["data"], content[b"data"])
    assert read["labels"] == [1, 2, 3]


@pytest.mark.parametrize("raw", [b"", b"not a pickle", made.official_files()["test_batch"][:-100]])
def test_damaged_pickles_are_named(raw):
    with pytest.raises(DataError, match=r"test_batch must be a complete pickle. Got \d+ bytes"):
        read_array_pickle(raw, "test_batch")
    with pytest.raises(DataError, match=r"must hold a dictionary\. Got list"):
        read_array_pickle(pickle.dumps([1]), "test_batch")


def test_the_real_cifar10(tmp_path):
    """Its first 500 images, in a file of the same schema: to decode all takes long."""
    parquet = pytest.importorskip("pyarrow.parquet")
    root = os.environ.get("INTERTWINE_DATA") or Path(__file__).parents[3] / "shared" / "data"
    file = Path(root) / "cifar10" / "test.parquet"
    if not file.is_file():
        pytest.skip("no CIFAR-10: set INTERTWINE_DATA to the folder that holds cifar10/test.parquet")
    parquet.write_table(parquet.read_table(file).slice(0, 500), tmp_path / "test.parquet")
    splits = data.load(f"parquet:{tmp_path / 'test.parquet'}")
    assert splits.classes == tuple(made.NAMES)
    assert splits.shape == (3, 32, 32)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 500


# --- parquet -------------------------------------------------------------------------------------


def test_shards_in_a_data_folder_are_joined_in_order(tmp_path):
    images = [made.encode(image) for image in made.pixels(30, size=6)]
    for i in range(2):
        part = images[15 * i : 15 * i + 15]
        made.write_parquet(tmp_path / "data" / f"train-0000{i}-of-00002.parquet", part, [j % 3 for j in range(15)])
    made.write_parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", images[:6], [0, 1, 2, 0, 1, 2])
    splits = data.load(f"parquet:{tmp_path}")
    assert torch.equal(splits.validation.inputs, as_tensor(made.pixels(30, size=6))[:6])
    assert len(splits.train) + len(splits.test) == 30


def test_a_split_column_is_obeyed(tmp_path):
    images = [made.encode(image) for image in made.pixels(20, size=5)]
    split = ["train"] * 12 + ["val"] * 4 + ["test"] * 4
    made.write_parquet(tmp_path / "a.parquet", images, [i % 2 for i in range(20)], split=split)
    splits = data.load(f"parquet:{tmp_path / 'a.parquet'}")
    assert torch.equal(splits.test.inputs, as_tensor(made.pixels(20, size=5))[16:])
    assert len(splits.train) == 12


def test_decoded_images_are_cached_until_the_file_changes(tmp_path, private_cache):
    file = tmp_path / "a.parquet"
    made.write_parquet(file, [made.encode(i) for i in made.pixels(20, size=5)], [i % 2 for i in range(20)])
    first = data.load(f"parquet:{file}")
    (cached,) = private_cache.iterdir()
    assert torch.equal(first.test.inputs, data.load(f"parquet:{file}").test.inputs)
    cached.write_bytes(b"damaged")
    assert torch.equal(first.test.inputs, data.load(f"parquet:{file}").test.inputs)
    made.write_parquet(file, [made.encode(i) for i in made.pixels(20, 1, size=5)], [i % 2 for i in range(20)])
    os.utime(file, ns=(1, 1))
    assert not torch.equal(first.test.inputs, data.load(f"parquet:{file}").test.inputs)


def test_an_unwritable_cache_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("INTERTWINE_CACHE", str(tmp_path / "file" / "inside"))
    made.write_parquet(tmp_path / "a.parquet", [made.encode(i) for i in made.pixels(20, size=5)], [0, 1] * 10)
    assert data.load(f"parquet:{tmp_path / 'a.parquet'}").shape == (3, 5, 5)


def test_grey_images_keep_one_channel(tmp_path):
    images = [made.encode(image[:, :, 0]) for image in made.pixels(20, size=5)]
    made.write_parquet(tmp_path / "a.parquet", images, [0, 1] * 10)
    assert data.load(f"parquet:{tmp_path / 'a.parquet'}").shape == (1, 5, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda images, labels: ([*images[:3], images[3][:40], *images[4:]], labels),
            r"damaged one in row 3 \(3.png\)",
        ),
        (lambda images, labels: ([*images[:3], None, *images[4:]], labels), r"must have bytes. Got none in row 3"),
        (
            lambda images, labels: ([*images[:7], made.encode(made.pixels(1, size=9)[0]), *images[8:]], labels),
            r"must all have one size. Got 9x9 in row 7 \(7.png\) after 5x5",
        ),
        (lambda images, labels: ([], np.array([], dtype=np.int64)), "at least one row"),
        (lambda images, labels: (images, [None, *labels[1:]]), "whole numbers from 0, below 1,048,576. Got None"),
        (lambda images, labels: (images, [-1, *labels[1:]]), "Got -1 to 1"),
    ],
    ids=["damaged", "missing", "size", "empty", "no label", "negative"],
)
def test_bad_parquet_contents(tmp_path, change, message):
    images, labels = change([made.encode(i) for i in made.pixels(20, size=5)], [0, 1] * 10)
    made.write_parquet(tmp_path / "a.parquet", images, labels)
    refused(message, f"parquet:{tmp_path / 'a.parquet'}")


def test_a_truncated_or_missing_parquet_file_is_named(tmp_path):
    made.write_parquet(tmp_path / "a.parquet", [made.encode(i) for i in made.pixels(20, size=5)], [0, 1] * 10)
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-200])
    refused(r"complete parquet file. Got .*cut.parquet', \d+ bytes", f"parquet:{tmp_path / 'cut.parquet'}")
    refused(r"must be a file, or a folder that holds train.parquet", f"parquet:{tmp_path / 'gone.parquet'}")


def test_a_label_column_that_is_not_there_is_said(tmp_path):
    made.write_parquet(tmp_path / "a.parquet", [made.encode(made.pixels(1)[0])] * 4, [0, 1, 0, 1], label="kind")
    found = data.load(f"parquet:{tmp_path / 'a.parquet'}")
    assert not found.labelled and "no column is called label, labels" in found.notes[0]


# --- npz and image folders -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((30, 6, 6), (1, 6, 6)), ((30, 6, 6, 3), (3, 6, 6)), ((30, 3, 6, 6), (3, 6, 6)), ((30, 7), (7,))],
)
def test_npz_shapes(tmp_path, shape, expected):
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(30) % 3, x_test=x[:6], y_test=np.arange(6) % 3)
    splits = data.load(f"npz:{tmp_path / 'a.npz'}")
    assert splits.shape == expected
    assert len(splits.test) == 6


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "must hold x_train and y_train, or x and y; or x alone; .* tokens. Got a in"),
        ({"x": np.zeros((9, 4), np.float32), "labels": np.zeros(9, int)}, "x and y; .* Got x, labels in"),
        ({"x": np.zeros((0, 4), np.float32)}, "x and y; .* Got x in"),
        ({"x": np.zeros((9, 4), np.float32), "y": np.zeros(9)}, "y must hold whole numbers. Got float64"),
        ({"x": np.zeros((9, 4, 4), np.int32), "y": np.zeros(9, np.int64)}, r"or whole numbers \(N, T\) for tokens"),
        ({"x": np.full((9, 4), -1), "y": np.zeros(9, np.int64)}, "x must hold tokens of 0 or more. Got -1"),
        ({"x": np.zeros((9, 4), np.int64), "y": np.zeros((9, 3), np.int64)}, r"y must be of shape \(N,\) or \(N, T\)"),
        ({"x": np.zeros((9, 1), np.int64)}, "at least two tokens in a row"),
        ({"x": np.full((9, 4), np.nan), "y": np.zeros(9, np.int64)}, "x must be finite"),
        ({"x": np.array([{}] * 9, dtype=object), "y": np.zeros(9, np.int64)}, "plain arrays"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(message, f"npz:{tmp_path / 'a.npz'}")


def test_stimuli_need_no_labels(tmp_path):
    x = np.random.default_rng(0).random((30, 6, 6, 3), dtype=np.float32)
    np.savez(tmp_path / "a.npz", x=x)
    splits = data.load(f"npz:{tmp_path / 'a.npz'}")
    assert splits.shape == (3, 6, 6) and not splits.labelled
    assert all(len(splits.split(name)) == 30 for name in ("train", "test", "all"))
    with pytest.raises(DataError, match="must have labels to train on"):
        splits.need_labels("to train on")


def test_tokens_without_labels_predict_the_next(tmp_path):
    x = np.arange(200).reshape(40, 5) % 7
    np.savez(tmp_path / "a.npz", x=x.astype(np.int32))
    splits = data.load(f"npz:{tmp_path / 'a.npz'}")
    assert splits.shape == (4,) and splits.mean == () and len(splits.classes) == 7
    assert [len(splits.split(name)) for name in ("train", "validation", "test")] == [29, 3, 8]
    inputs, labels = splits.loader("train").batch(slice(0, 6))
    assert inputs.dtype == torch.int64 and torch.equal((inputs + 1) % 7, labels)


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 5)])
def test_tokens_with_labels(tmp_path, shape):
    x, y = np.arange(200).reshape(40, 5), np.arange(int(np.prod(shape))).reshape(shape) % 3
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    test = data.load(f"npz:{tmp_path / 'a.npz'}").test
    assert torch.equal(test.inputs, torch.from_numpy(x))
    assert torch.equal(test.labels, torch.from_numpy(y.reshape(40) if shape != (40, 5) else y))


def test_missing_and_damaged_npz(tmp_path):
    refused("must be an existing file", f"npz:{tmp_path / 'gone.npz'}")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nothing")
    refused(r"complete \.npz file", f"npz:{tmp_path / 'bad.npz'}")


def write_folder(folder, per_class=10, size=6, classes=("cat", "<script>")):
    for seed, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i, image in enumerate(made.pixels(per_class, seed, size)):
            Image.fromarray(image).save(folder / name / f"{i}.png")


def test_class_folders(tmp_path):
    write_folder(tmp_path)
    splits = data.load(f"images:{tmp_path}")
    assert splits.classes == ("<script>", "cat")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (14, 2, 4)


def test_split_folders(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "val", per_class=3)
    write_folder(tmp_path / "test", per_class=2)
    splits = data.load(f"images:{tmp_path}")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (20, 6, 4)
    (tmp_path / "test" / "dog").mkdir()
    refused(r"classes of the training folder. Got \['dog'\] besides", f"images:{tmp_path}")


def test_bad_image_folders(tmp_path):
    refused("must be an existing folder", f"images:{tmp_path / 'gone'}")
    (tmp_path / "only").mkdir()
    refused("must hold images", f"images:{tmp_path}")
    (tmp_path / "other").mkdir()
    refused(r"must hold images .*Got none", f"images:{tmp_path}")
    write_folder(tmp_path, classes=("cat", "dog"))
    (tmp_path / "dog" / "3.png").write_bytes(b"no image")
    refused(r"damaged one in .*dog.3\.png", f"images:{tmp_path}")


# --- ImageNet's layout ---------------------------------------------------------------------------------


def write_imagenet(folder, sizes=((40, 30), (30, 50))):
    """Two classes; every image of one colour, of which the first number is that of the image."""
    for part, count in (("train", 60), ("val", 3)):
        for label, name in enumerate(("n01440764", "n01443537")):
            (folder / part / name).mkdir(parents=True)
            for k in range(count):
                colour = (4 * k, 255 * label, 10)
                Image.new("RGB", sizes[k % 2], colour).save(folder / part / name / f"{name}_{k}.JPEG", quality=95)


def test_imagenets_layout_is_read_where_it_is_asked_for(tmp_path, monkeypatch):
    write_imagenet(tmp_path)
    decoded = []
    monkeypatch.setattr(pictures, "pixels", lambda file, name: decoded.append(name) or pixels(file, name))
    splits = data.load(f"imagenet:{tmp_path}")
    assert (splits.name, splits.classes) == ("imagenet", ("n01440764", "n01443537"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (118, 2, 6)
    assert splits.shape == (3, 224, 224)
    assert splits.mean == (0.485, 0.456, 0.406)
    assert decoded == []
    few = splits.first(10).loader("train", batch_size=4, examples=6)
    assert decoded == []
    inputs, labels = next(iter(few))
    assert len(decoded) == 4
    assert inputs.shape == (4, 3, 224, 224)
    green = inputs[:, 1].mean((1, 2)) * splits.std[1] + splits.mean[1]
    torch.testing.assert_close(green, labels.float(), atol=0.02, rtol=0)  # the label is that of the image
    assert len(splits.split("all")) == 126
    assert {Path(f).parent.parent.name for f in splits.test.inputs.files} == {"val"}


def test_a_network_trains_and_is_tested_on_images_in_files(tmp_path):
    write_imagenet(tmp_path)
    splits = data.load(f"imagenet:{tmp_path}", data.Preprocessing.square(16))
    assert splits.shape == (3, 16, 16)
    recipe = training.Recipe(epochs=2, batch_size=16, translate=0, flip=True, crop=0.35)
    found = training.train("mlp:widths=8", splits, recipe, progress=False)
    assert found.card.metrics["test_accuracy"] == 1.0


def test_imagenet_says_what_to_put_where(tmp_path):
    refused(r"a folder for each class .* in train and val. Got none in .*train", f"imagenet:{tmp_path}")
    write_imagenet(tmp_path)
    (tmp_path / "val" / "n9").mkdir()
    refused(r"classes of the training folder. Got \['n9'\] besides", f"imagenet:{tmp_path}")
    shutil.rmtree(tmp_path / "val")
    (tmp_path / "val").mkdir()
    refused(r"Got none in .*val.*ILSVRC2012_img_val.tar", f"imagenet:{tmp_path}")
