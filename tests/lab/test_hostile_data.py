"""Data of others: pixels are what they were, and neither time nor memory is taken without end."""

import contextlib
import gzip
import io
import json
import os
import struct
import sys
import tarfile
import time
import tracemalloc
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lab_archives import refused
from PIL import Image

from intertwine.errors import DataError
from intertwine.lab.data import CocoConcepts, Split, load, make_splits
from intertwine.lab.data.load import read_array_pickle
from intertwine.lab.data.pictures import numbers, pixels

RAMP = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)  # 0 to 255 in 16 bits


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def folder_of(tmp_path, **files):
    for name in ("cats", "dogs"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for k in range(8):
            (tmp_path / "set" / name / f"{k}.png").write_bytes(encoded(Image.new("L", (4, 4), 9 * k)))
    for name, content in files.items():
        (tmp_path / "set" / "cats" / name).write_bytes(content)
    return f"images:{tmp_path / 'set'}"


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bits_are_scaled_to_8(kind):
    written = (
        b"P5 16 16 65535\n" + RAMP.astype(">u2").tobytes() if kind == "PPM" else encoded(Image.fromarray(RAMP), kind)
    )
    assert np.array_equal(pixels(written, "it"), np.arange(256).reshape(16, 16))


def test_labels_of_16_bits_stay_as_they_are():
    assert np.array_equal(numbers(encoded(Image.fromarray(RAMP)), "it"), RAMP)


def test_modes_keep_their_colours():
    red = np.array([[[255, 0, 0]]], dtype=np.uint8).repeat(4, 0).repeat(4, 1)
    for mode in ("RGB", "RGBA", "P"):
        assert np.array_equal(pixels(encoded(Image.fromarray(red).convert(mode)), "it"), red), mode
    transparent = Image.fromarray(red).convert("RGBA")
    transparent.putalpha(0)
    assert np.array_equal(pixels(encoded(transparent), "it"), red)
    assert np.array_equal(pixels(encoded(Image.fromarray(red).convert("CMYK"), "TIFF"), "it"), red)
    for mode in ("1", "L", "LA"):
        assert np.array_equal(pixels(encoded(Image.new("L", (4, 4), 255).convert(mode)), "it"), np.full((4, 4), 255))


def test_orientation_is_applied():
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) * 10)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert np.array_equal(pixels(encoded(image, exif=exif), "it"), np.rot90(np.asarray(image), -1))


@pytest.mark.parametrize(("values", "kind"), [(np.float32([[0.5]]), "TIFF"), (np.int32([[70000]]), "TIFF")])
def test_pixels_without_a_range_are_refused(values, kind):
    with pytest.raises(DataError, match="must have pixels of 8 or 16 bits"):
        pixels(encoded(Image.fromarray(values), kind), "it")


def test_other_formats_never_reach_their_decoders(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: called.append(1))
    eps = encoded(Image.new("RGB", (4, 4)), "EPS")
    for content in (eps, encoded(Image.new("RGB", (4, 4)), "PDF"), encoded(Image.new("RGB", (4, 4)), "TGA")):
        with pytest.raises(DataError, match="must decode as one of PNG"):
            pixels(content, "it")
    refused(r"damaged one in .*x\.png", folder_of(tmp_path, **{"x.png": eps}))
    assert not called


def small_png(width, height):
    """A PNG of zeros, written by hand."""

    def chunk(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(13_000, 13_000), (2**31 - 1, 1), (30_000, 30_000)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_of_too_many_pixels_are_refused_before_they_are_decoded(size):
    with pytest.raises(DataError, match="must have at most 67,108,864 pixels"):
        pixels(small_png(*size), "it")


def test_many_images_are_added_up_before_they_are_decoded(tmp_path, monkeypatch):
    spec = folder_of(tmp_path)
    monkeypatch.setattr("intertwine._memory.free_bytes", lambda *_: 1000)
    refused(r"must fit in memory. Got 16 images of 4x4", spec)


def test_files_that_the_system_hides_are_left_out_and_pipes_refused(tmp_path):
    spec = folder_of(tmp_path, **{"._0.png": b"\x00\x05\x16\x07Mac OS X", ".DS_Store": b"x", "notes.txt": b"x"})
    assert load(spec).shape == (1, 4, 4)
    os.mkfifo(tmp_path / "set" / "dogs" / "pipe.png")
    refused(r"must be an existing file. Got .*pipe\.png', a named pipe", spec)


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.parquet")
    os.mkfifo(tmp_path / "data_batch_1")
    for spec in (f"parquet:{tmp_path}", f"cifar10:{tmp_path}", f"npz:{tmp_path / 'train.parquet'}"):
        with pytest.raises(DataError):
            load(spec)


def test_one_large_label_makes_no_list_of_classes(tmp_path):
    x = torch.rand(40, 1, 2, 2)
    for label in (10**9, 2**40, 2**62):
        y = torch.arange(40) % 2
        y[7] = label
        with pytest.raises(DataError, match=r"must be class numbers below 1,048,576. Got"):
            make_splits("it", Split(x, y))
    image = encoded(Image.new("L", (2, 2)))
    pq.write_table(pa.table({"image": [image] * 40, "label": [*([0, 1] * 19), 10**9, 0]}), tmp_path / "a.parquet")
    refused(r"whole numbers from 0, below 1,048,576. Got 1000000000", f"parquet:{tmp_path / 'a.parquet'}")


def test_arrays_that_nobody_asked_for_stay_packed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2, more=np.zeros(30_000_000, np.int8))

    tracemalloc.start()
    assert load(f"npz:{path}").shape == (3,)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def claim(path, shape):
    """An archive whose x says it has another shape than its bytes."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
    array = io.BytesIO()
    np.save(array, np.arange(20) % 2)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(80))
        archive.writestr("y.npy", array.getvalue())


def test_arrays_are_what_they_say(tmp_path, monkeypatch):
    claim(tmp_path / "a.npz", (10**12, 3))
    refused(r"x.npy says 12,000,000,000,000 bytes and has 80", f"npz:{tmp_path / 'a.npz'}")
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
    monkeypatch.setattr("intertwine._memory.free_bytes", lambda *_: 1000)
    refused(r"must fit in memory. Got arrays x, y", f"npz:{tmp_path / 'b.npz'}")


class Zeros:
    """A stream of so many zero bytes."""

    def __init__(self, size):
        self.left = size

    def read(self, size=-1):
        size = self.left if size < 0 else min(size, self.left)
        self.left -= size
        return bytes(size)


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/filler"])
def test_an_archive_that_unpacks_without_end_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[load.__module__], "_LONGEST", 2**24)
    path = tmp_path / "cifar-10-python.tar.gz"
    member = tarfile.TarInfo(name)
    member.size = 2**27
    with gzip.open(path, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        tar.addfile(member, Zeros(member.size))
    assert path.stat().st_size < 2**20
    start = time.perf_counter()
    refused(r"it unpacks to more than 16,777,216 bytes", f"cifar10:{path}")
    assert time.perf_counter() - start < 5


def test_a_pickle_cannot_ask_for_a_table_of_any_length():
    for code in (b"\x80\x02}r\xff\xff\xff\x7f.", b"\x80\x02}r\x00\x00\x00\x70s."):  # puts at number 2**31 - 1
        start = time.perf_counter()
        with contextlib.suppress(DataError):
            read_array_pickle(code, "it")
        assert time.perf_counter() - start < 1


def test_names_in_annotations_stay_in_their_folder(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    (tmp_path / "images").mkdir()
    for name in ("../secret.png", str(tmp_path / "secret.png"), "", 7):
        image = {"id": 1, "file_name": name, "height": 4, "width": 4}
        content = {"images": [image], "annotations": [{"image_id": 1}], "categories": [{"id": 1, "name": "x"}]}
        (tmp_path / "a.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"file_name must be a (file in .*leads out of it|text. Got 7)"):
            CocoConcepts(tmp_path / "a.json", tmp_path / "images")[0]
