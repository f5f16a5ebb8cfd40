"""Tiny data sets in the layouts that the loaders read, made by the tests."""

import io
import pickle
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from intertwine.errors import DataError
from intertwine.lab.data import load

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def refused(message, spec, how=None):
    """Such data is refused in these words."""
    with pytest.raises(DataError, match=message):
        load(spec, how)


def pixels(n, seed=0, size=32):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def encode(array, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(array, dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(path, images, labels, label="label", metadata=None, **columns):
    rows = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array(rows, image_type), label: pa.array(labels), **columns})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def rows_of_planes(images):
    """The official layout: each row all red, then all green, then all blue pixels."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), -1))


def official_files(per_batch=20, hundred=False):
    """File name to pickle, as Python 2 readers expect them (protocol 2, byte-string keys)."""
    label = b"fine_labels" if hundred else b"labels"
    count = 100 if hundred else 10
    batches = ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    if hundred:
        per_batch = 1000
    files = {}
    for seed, name in enumerate(batches):
        labels = [i % count for i in range(per_batch)]
        content = {b"data": rows_of_planes(pixels(per_batch, seed)), label: labels, b"batch_label": name.encode()}
        files[name] = pickle.dumps(content, protocol=2)
    names = [f"class {i}".encode() for i in range(100)] if hundred else [n.encode() for n in NAMES]
    meta = "meta" if hundred else "batches.meta"
    files[meta] = pickle.dumps({b"fine_label_names" if hundred else b"label_names": names}, protocol=2)
    return files


def write_archive(path, files, folder):
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
