"""Concept sets: the five layouts on tiny made files, the generated set, colours, and bad input."""

import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from lab_archives import encode as png
from PIL import Image

from intertwine.dissection import COLOURS, Bases, Concept, Criterion, TensorConcepts, WithColours, dissect, name_colours
from intertwine.errors import DataError
from intertwine.lab.data.concept_files import BrodenConcepts, CocoConcepts, FolderConcepts, ParquetConcepts
from intertwine.lab.data.concepts import GeneratedConcepts, load_concepts
from intertwine.lab.data.pictures import decode_runs, fill_polygons


def refused(cases):
    """Each call ends in a ``DataError`` with these words."""
    for message, call in cases:
        with pytest.raises(DataError, match=message):
            call()


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# generated


def test_generated_images_are_the_same_every_time():
    a, b = GeneratedConcepts(3), GeneratedConcepts(50)
    for i in range(3):
        assert torch.equal(a[i].image, b[i].image)
        assert torch.equal(a[i].labels, b[i].labels)
    assert not torch.equal(a[0].image, GeneratedConcepts(3, seed=1)[0].image)
    checksum = sum(int(a[i].image.long().sum()) + int(a[i].labels.sum()) for i in range(3))
    assert checksum == 4333966  # another value means that published results no longer belong to this set


def test_every_generated_concept_occurs_and_none_is_too_wide():
    data = GeneratedConcepts(300)
    area = torch.zeros(len(data.concepts) + 1)
    for i in range(300):
        area += torch.bincount(data[i].labels.flatten() + 1, minlength=len(area))
    share = area[1:] / (300 * 64 * 64)
    assert bool((share > 0.003).all())
    assert bool((share < 0.15).all())


def test_generated_planes_agree_with_each_other_and_with_the_pixels():
    data = GeneratedConcepts(40)
    red = data.concepts.index(Concept("red", "colour"))
    for i in range(40):
        texture, colour, shape, thing = data[i].labels
        assert torch.equal(texture < 0, colour >= 0)
        assert torch.equal(colour >= 0, shape >= 0)
        assert bool((shape[thing >= 0] >= 0).all())
        pixels = data[i].image[:, colour == red]
        if pixels.numel():
            assert float(pixels[0].float().mean()) > 150 > float(pixels[1:].float().mean())


def test_generated_sizes():
    assert GeneratedConcepts(2, size=32)[1].image.shape == (3, 32, 32)
    with pytest.raises(ValueError, match=r"images must be at least 1"):
        GeneratedConcepts(0)
    with pytest.raises(ValueError, match=r"size must be at least 16"):
        GeneratedConcepts(1, size=8)


# the base


def test_indexing_subsets_and_batches():
    data = GeneratedConcepts(7)
    part = data.subset([5, 1])
    assert len(part) == 2
    assert torch.equal(part[0].image, data[5].image)
    sizes = [len(b.images) for b in data.batches(3)]
    assert sizes == [3, 3, 1]
    batch = next(data.batches(2))
    assert batch.images.dtype == torch.float32
    assert float(batch.images.max()) <= 1
    with pytest.raises(IndexError, match=r"i must be in \[0, 7\). Got 7"):
        data[7]
    with pytest.raises(IndexError, match=r"Got 9"):
        data.subset([1, 9])
    with pytest.raises(ValueError, match=r"at least one image"):
        data.subset([])


def test_tensor_concepts_are_checked():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"concept indices in \[0, 2\).*Got 5"):
        TensorConcepts(images, torch.full((2, 4, 4), 5), ["a", "b"])[0]
    with pytest.raises(DataError, match=r"Got -2"):
        TensorConcepts(images, torch.full((2, 4, 4), -2), ["a", "b"])[0]
    with pytest.raises(DataError, match=r"must be \(3, H, W\) in uint8"):
        TensorConcepts(images.float(), torch.zeros(2, 4, 4).long(), ["a"])[0]
    with pytest.raises(DataError, match=r"labels must be whole numbers. Got torch.float32"):
        TensorConcepts(images, torch.zeros(2, 4, 4), ["a"])
    with pytest.raises(DataError, match=r"labels must be given for all 2 images"):
        TensorConcepts(images, torch.zeros(3, 4, 4), ["a"])
    with pytest.raises(DataError, match=r"must hold images and concepts"):
        TensorConcepts(images, torch.zeros(2, 4, 4), [])


# colours


def test_colours_of_plain_pixels():
    rgb = {
        "black": (10, 10, 10), "white": (250, 250, 250), "grey": (128, 128, 128), "red": (210, 30, 30),
        "orange": (240, 140, 20), "yellow": (240, 230, 40), "green": (40, 160, 60), "blue": (40, 60, 200),
        "purple": (140, 50, 190), "pink": (250, 150, 190), "brown": (110, 65, 30),
    }  # fmt: skip
    pixels = torch.tensor(list(rgb.values()), dtype=torch.uint8).T[:, None]
    assert [COLOURS[i] for i in name_colours(pixels)[0]] == list(rgb)
    with pytest.raises(ValueError, match=r"image must be"):
        name_colours(pixels.float())


def test_every_colour_has_a_name():
    grid = torch.cartesian_prod(*[torch.arange(0, 256, 15)] * 3).T[:, None].to(torch.uint8)
    assert set(name_colours(grid).unique().tolist()) == set(range(11))


def test_colours_as_one_more_plane():
    images = torch.zeros(1, 3, 6, 6, dtype=torch.uint8)
    images[0, 0, :, :3] = 220
    data = WithColours(TensorConcepts(images, torch.zeros(1, 3, 3).long(), ["thing"]))
    sample = data[0]
    assert sample.labels.shape == (2, 3, 3)  # brought to the size of the labels
    assert [data.concepts[i].name for i in sample.labels[1, 0].tolist()] == ["red", "black", "black"]
    with pytest.raises(ValueError, match=r"no category 'colour' of its own"):
        WithColours(GeneratedConcepts(1))


# parquet


def write_parquet(path, rows, names=("sky", "road", "unlabelled"), columns=("image", "mask", "split"), said=None):
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = {
        "image": [{"bytes": png(i), "path": None} for i, _, _ in rows],
        "mask": [{"bytes": m if isinstance(m, bytes) else png(m), "path": None} for _, m, _ in rows],
        "split": [s for _, _, s in rows],
    }
    table = pa.table({c: data[c] for c in columns})
    if names:
        table = table.replace_schema_metadata({"concepts": said or json.dumps(list(names))})
    pq.write_table(table, path)
    return path


@pytest.fixture
def masks():
    return [np.array([[0, 1, 2], [1, 255, 0]]), np.array([[1, 1, 1], [0, 0, 0]])]


def test_parquet_layout(tmp_path, masks):
    rows = [(picture(2, 3, k), m, s) for k, (m, s) in enumerate(zip(masks, ("train", "val")))]
    data = ParquetConcepts(write_parquet(tmp_path / "s.parquet", rows))
    assert [c.name for c in data.concepts] == ["sky", "road"]
    assert data[0].labels.tolist() == [[[0, 1, -1], [1, -1, 0]]]
    assert torch.equal(data[0].image.permute(1, 2, 0), torch.from_numpy(rows[0][0]))
    val = ParquetConcepts(tmp_path / "s.parquet", split="val")
    assert len(val) == 1
    assert {c.category for c in val.concepts} == {"object"}
    assert ParquetConcepts(tmp_path / "s.parquet", size=(4, 6))[0].labels.shape == (1, 4, 6)


def test_parquet_errors(tmp_path, masks):
    image = picture(2, 3)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    made = lambda name, image=image, mask=masks[0], **how: write_parquet(
        tmp_path / f"{name}.parquet", [(image, mask, "train")], **how
    )
    unnamed, plain = made("b", names=()), made("c")
    assert len(ParquetConcepts(unnamed, names=["a", "b", "c"])) == 1
    for said in ("{", "7", '{"a": 1}', "[1, 2]", '"ab"', "[" * 10**5, b"\xff"):
        refused([("must name its labels", lambda said=said: ParquetConcepts(made("g", said=said)))])
    refused([
        ("must be an existing file", lambda: ParquetConcepts(tmp_path / "none.parquet")),
        ("must be a complete parquet file", lambda: ParquetConcepts(tmp_path / "bad.parquet")),
        (r"must have a column 'mask'. Got \['image', 'split'\]",
         lambda: ParquetConcepts(made("a", columns=("image", "split")))),
        ("must name its labels", lambda: ParquetConcepts(unnamed)),
        ("split must be one of train. Got 'dev'", lambda: ParquetConcepts(plain, split="dev")),
        ("label numbers below 2.*Got 2.*Check that the names", lambda: ParquetConcepts(plain, names=["a", "b"])[0]),
        ("mask of row 0 of d must have the size of its image, 6x4. Got 3x2",
         lambda: ParquetConcepts(made("d", picture(4, 6)))[0]),
        ("must have one channel of label numbers", lambda: ParquetConcepts(made("e", mask=picture(2, 3)))[0]),
        ("images must decode as one of PNG.*damaged one in mask of row 0 of f",
         lambda: ParquetConcepts(made("f", mask=b"no image"))[0]),
    ])  # fmt: skip


def camvid():
    root = os.environ.get("INTERTWINE_DATA") or Path(__file__).parents[2].parent / "shared" / "data"
    path = Path(root) / "camvid" / "camvid.parquet"
    if not path.is_file():
        pytest.skip("no camvid/camvid.parquet in INTERTWINE_DATA")
    return path


def test_camvid():
    data = ParquetConcepts(camvid(), split="test", size=(90, 120))
    assert len(data) == 233
    assert [c.name for c in data.concepts][:3] == ["sky", "building", "pole"]
    assert len(data.concepts) == 11
    sample = data[5]
    assert sample.image.shape == (3, 90, 120)
    assert len(sample.labels.unique()) > 5


# folder


def make_folder(root, masks, names="sky\nroad\nvoid\n"):
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    for k, mask in enumerate(masks):
        (root / "images" / f"{k}.png").write_bytes(png(picture(2, 3, k)))
        (root / "masks" / f"{k}.png").write_bytes(png(mask))
    if names:
        (root / "labels.txt").write_text(names)
    return root


def test_folder_layout(tmp_path, masks):
    data = FolderConcepts(make_folder(tmp_path / "set", masks))
    assert len(data) == 2
    assert data.name == "set"
    assert data[1].labels.tolist() == [[[1, 1, 1], [0, 0, 0]]]


def test_an_empty_line_is_a_label_number_without_a_name(tmp_path, masks):
    data = FolderConcepts(make_folder(tmp_path / "set", masks, names="\nsky\n\n"))
    assert [c.name for c in data.concepts] == ["sky"]
    assert data[1].labels.tolist() == [[[0, 0, 0], [-1, -1, -1]]]


def test_palette_masks_are_numbers(tmp_path, masks):
    root = make_folder(tmp_path / "set", masks)
    image = Image.fromarray(masks[1].astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    image.save(root / "masks" / "0.png")
    assert FolderConcepts(root)[0].labels.tolist() == [[[1, 1, 1], [0, 0, 0]]]


def test_folder_errors(tmp_path, masks):
    lacking, other = make_folder(tmp_path / "c", masks), make_folder(tmp_path / "e", masks)
    (lacking / "masks" / "1.png").unlink()
    (other / "images" / "1.png").write_bytes(png(picture(4, 6)))
    refused([
        ("must have a folder 'images'", lambda: FolderConcepts(tmp_path)),
        ("must have labels.txt", lambda: FolderConcepts(make_folder(tmp_path / "a", masks, names=""))),
        ("at least one image", lambda: FolderConcepts(make_folder(tmp_path / "b", []))),
        ("must have a mask with its stem. Got none for 1.png", lambda: FolderConcepts(lacking)),
        ("at least one concept", lambda: FolderConcepts(make_folder(tmp_path / "d", masks, names="background\n"))),
        ("the mask of 1.png must have the size of its image, 6x4. Got 3x2", lambda: FolderConcepts(other)[1]),
    ])  # fmt: skip
    (other / "masks" / "1.png").write_bytes(png(np.zeros((4, 6))))
    refused([(r"image of e must all have one size.*size=\(height, width\)",
              lambda: list(FolderConcepts(other).batches(2)))])  # fmt: skip
    assert len(list(FolderConcepts(other, size=(4, 6)).batches(2))) == 1


# COCO


def encode_runs(mask):
    """Lengths of runs of 0 and 1 in turn, column by column: written from the format's description."""
    flat = mask.T.flatten().astype(int)
    runs, last, count = [], 0, 0
    for value in flat:
        if value != last:
            runs.append(count)
            last, count = value, 0
        count += 1
    return [*runs, count]


def runs_to_text(runs):
    text = ""
    for i, value in enumerate(runs):
        x = value - runs[i - 2] if i > 2 else value
        while True:
            group = x & 31
            x >>= 5
            more = x != -1 if group & 16 else x != 0
            text += chr(48 + (group | 32 * more))
            if not more:
                break
    return text


@pytest.mark.parametrize("seed", range(6))
def test_runs_decode_in_both_forms(seed):
    random = np.random.default_rng(seed)
    mask = random.uniform(size=(37, 53)) < [0.5, 0.05, 0.95, 0.0, 1.0, 0.5][seed]
    if seed == 5:
        mask = np.kron(mask[:5, :6], np.ones((40, 30))).astype(bool)
    runs = encode_runs(mask)
    assert np.array_equal(decode_runs(runs, mask.shape), mask)
    text = runs_to_text(runs)
    assert np.array_equal(decode_runs(text, mask.shape), mask)
    assert np.array_equal(decode_runs(text.encode(), mask.shape), mask)


def test_runs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"runs must cover 2 x 3 pixels. Got 5"):
        decode_runs([2, 3], (2, 3))


def test_polygons():
    mask = fill_polygons([[1, 1, 4, 1, 4, 3, 1, 3]], (6, 7))
    assert mask.sum() == 12
    assert mask[1:4, 1:5].all()
    both = fill_polygons([[0, 0, 1, 0, 0, 1], [5, 5, 6, 5, 6, 4]], (6, 7))
    assert both[0, 0]
    assert both[5, 6]
    with pytest.raises(ValueError, match=r"at least three corners. Got 4"):
        fill_polygons([[0, 0, 1, 1]], (4, 4))


def make_coco(root, segmentations, shape=(6, 7), **changes):
    (root / "images").mkdir(parents=True)
    (root / "images" / "a.png").write_bytes(png(picture(*shape)))
    data = {
        "images": [{"id": 9, "file_name": "a.png", "height": 6, "width": 7}],
        "categories": [
            {"id": 3, "name": "cat", "supercategory": "animal"},
            {"id": 18, "name": "hat", "supercategory": "thing"},
        ],
        "annotations": [
            {"image_id": 9, "category_id": category, "segmentation": segmentation}
            for category, segmentation in segmentations
        ],
        **changes,
    }
    (root / "a.json").write_text(json.dumps(data))
    return CocoConcepts(root / "a.json", root / "images")


def test_coco_layout_with_overlap(tmp_path):
    hat = np.zeros((6, 7), dtype=bool)
    hat[0:2, 1:4] = True
    data = make_coco(
        tmp_path,
        [
            (3, [[1, 1, 4, 1, 4, 3, 1, 3]]),
            (18, {"size": [6, 7], "counts": runs_to_text(encode_runs(hat))}),
            (3, [[6, 5, 6, 5, 6, 5]]),
        ],
    )
    assert data.concepts == (Concept("cat", "animal"), Concept("hat", "thing"))
    labels = data[0].labels
    assert labels.shape == (3, 6, 7)
    assert torch.equal((labels == 1).any(0), torch.from_numpy(hat))
    cat = (labels == 0).any(0)
    assert int(cat.sum()) == 13
    assert int(((labels == 1).any(0) & cat).sum()) == 3  # pixels that are both


def test_coco_errors(tmp_path):
    square, of = [[0, 0, 3, 0, 3, 3]], "category_id must be one of the file's categories. Got"
    made = lambda name, *of, **how: make_coco(tmp_path / name, list(of), **how)
    annotated = lambda name, **entry: made(name, annotations=[{"segmentation": square, **entry}])
    refused([
        ("annotations must be an existing file", lambda: CocoConcepts(tmp_path / "no.json", tmp_path)),
        ("Got no annotations", lambda: made("a")),
        (f"{of} 4", lambda: made("b", (4, square))[0]),
        (r"size \(6, 7\) of its image. Got \(5, 5\)", lambda: made("c", (3, {"size": [5, 5], "counts": [25]}))[0]),
        ("must be polygons or runs. Got NoneType", lambda: made("d", (3, None))[0]),
        ("must have the size of its entry, 7x6. Got 9x8", lambda: made("e", (3, square), shape=(8, 9))[0]),
        (r"annotations\[0\] must be an object. Got 'image_id'", lambda: made("h", annotations=["image_id"])),
        (f"{of} None", lambda: annotated("g", image_id=9)[0]),
        (r"category_id must be a whole number or a text or left out. Got \[3\]", lambda: made("i", ([3], square))),
        (r"annotations\[0\].image_id must be a whole number or a text. Got \[9\]",
         lambda: annotated("j", image_id=[9], category_id=3)),
        *((rf"a.json': {part} must be a list. Got True", lambda k=part: made(f"k {k}", (3, square), **{k: True}))
          for part in ("images", "annotations", "categories")),
    ])  # fmt: skip
    keys = [("images", "file_name"), ("images", "id"), ("annotations", "image_id"), ("categories", "name")]
    for part, key in keys:
        whole = {"images": {"id": 9, "file_name": "a.png"}, "categories": {"id": 3, "name": "cat"}}
        entry = whole.get(part, {"image_id": 9, "category_id": 3, "segmentation": square})
        without = {name: value for name, value in entry.items() if name != key}
        with pytest.raises(DataError, match=rf"a.json': {part}\[1\].{key} must be a .*. Got nothing"):
            made(f"{part} {key}", (3, square), **{part: [entry, without]})
    data = made("f", (3, square), (18, square))
    data.planes = 1
    refused([("at most planes=1 categories", lambda: data[0])])
    (tmp_path / "f" / "images" / "a.png").unlink()
    refused([("a.png must be an existing file", lambda: data[0])])


# Broden


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def packed(numbers):
    numbers = np.asarray(numbers)
    return np.stack([numbers % 256, numbers // 256, np.zeros_like(numbers)], 2)


@pytest.fixture
def broden(tmp_path):
    """Two images in the official layout; label 300 needs two bytes; "door" is both object and part."""
    root = tmp_path / "broden"
    (root / "images" / "x").mkdir(parents=True)
    names = ["color", "object", "part", "scene"]
    common = {"ih": 4, "iw": 6, "sh": 2, "sw": 3}
    rows = [
        {"image": "x/a.png", "split": "train", **common, "color": "x/a_color.png", "object": "x/a_object.png",
         "part": "x/a_part_1.png;x/a_part_2.png", "scene": "7"},
        {"image": "x/b.png", "split": "val", **common, "color": "x/b_color.png", "object": "", "part": "",
         "scene": "7;8"},
    ]  # fmt: skip
    write_csv(root / "index.csv", rows)
    labels = {1: "red-c", 2: "blue-c", 3: "car", 4: "door", 5: "wheel", 7: "street", 8: "forest", 300: "house"}
    write_csv(
        root / "label.csv",
        [
            {"number": n, "name": v, "category": "", "frequency": 1, "coverage": 1, "syns": ""}
            for n, v in labels.items()
        ],
    )
    write_csv(root / "category.csv", [{"name": n, "first": 0, "last": 0, "count": 0, "frequency": 0} for n in names])
    members = {"color": {1: 2, 2: 2}, "object": {3: 9, 4: 1, 300: 4}, "part": {4: 5, 5: 5}, "scene": {7: 2, 8: 1}}
    for name, numbers in members.items():
        write_csv(
            root / f"c_{name}.csv",
            [{"code": k, "number": n, "name": labels[n], "frequency": f, "coverage": 1}
             for k, (n, f) in enumerate(numbers.items())],
        )  # fmt: skip
    files = {
        "a_color": [[1, 2, 1], [0, 2, 2]], "a_object": [[3, 3, 300], [4, 0, 300]], "a_part_1": [[5, 0, 0], [0, 0, 0]],
        "a_part_2": [[4, 4, 0], [0, 0, 0]], "b_color": [[1, 1, 1], [1, 1, 1]],
    }  # fmt: skip
    for name, numbers in files.items():
        (root / "images" / "x" / f"{name}.png").write_bytes(png(packed(numbers)))
    for name in "ab":
        (root / "images" / "x" / f"{name}.png").write_bytes(png(picture(4, 6)))
    return root


def test_broden_layout(broden):
    data = BrodenConcepts(broden)
    kinds = {c.name: c.category for c in data.concepts}
    assert kinds == {
        "red-c": "color", "blue-c": "color", "car": "object", "house": "object", "door": "part", "wheel": "part",
        "street": "scene", "forest": "scene",
    }  # fmt: skip
    named = lambda labels: [[data.concepts[i].name if i >= 0 else "" for i in row] for row in labels.tolist()]
    a, b = data[0], data[1]
    assert named(a.labels[0]) == [["red-c", "blue-c", "red-c"], ["", "blue-c", "blue-c"]]
    assert named(a.labels[1]) == [["car", "car", "house"], ["door", "", "house"]]
    assert named(a.labels[3]) == [["door", "door", ""], ["", "", ""]]
    assert a.image.shape == (3, 4, 6)
    assert [data.concepts[i].name if i >= 0 else "" for i in a.image_labels.tolist()] == ["street", ""]
    assert [data.concepts[i].name for i in b.image_labels.tolist()] == ["street", "forest"]
    assert bool((b.labels[1:] == -1).all())
    assert len(BrodenConcepts(broden, split="val")) == 1


def test_broden_can_be_dissected(broden):
    torch.manual_seed(0)
    found = dissect(
        torch.nn.Conv2d(3, 5, 1), "", BrodenConcepts(broden), Bases([0, 1], 1), pictures=1,
        criterion=Criterion(quantile=0.2),
    )  # fmt: skip
    assert found.unchanged is True
    assert found.categories == ("color", "object", "part", "scene")


@pytest.mark.parametrize("file", ["index.csv", "label.csv", "category.csv", "c_part.csv"])
def test_missing_broden_files_are_named(broden, file):
    (broden / file).unlink()
    with pytest.raises(DataError, match=f"must hold {file}"):
        BrodenConcepts(broden)


def test_broden_errors(broden):
    file, first = broden / "images" / "x" / "a_object.png", lambda: BrodenConcepts(broden)[0]
    refused([("split must be one of train, val", lambda: BrodenConcepts(broden, split="test"))])
    file.write_bytes(png(packed([[1, 2], [3, 4]])))
    refused([("x/a_object.png must have the size in index.csv, 3x2. Got 2x2", first)])
    file.write_bytes(png(packed([[1, 2, 999], [3, 4, 1]])))
    refused([("must be numbers of label.csv, below 301. Got 999", first)])
    file.unlink()
    refused([("x/a_object.png must be an existing file", first)])
    (broden / "category.csv").write_text("name\nmaterial\n")
    refused([("column for each category. Got none for material", first)])


# by a line of text


def test_specs(tmp_path, masks, broden):
    assert len(load_concepts("generated", images=4)) == 4
    folder = make_folder(tmp_path / "set", masks)
    data = load_concepts(f"masks:{folder}+colours", images=1)
    assert len(data) == 1
    assert data.categories == ("object", "colour")
    assert len(load_concepts(f"broden:{broden}", split="train")) == 1
    make_coco(tmp_path / "coco", [(3, [[0, 0, 3, 0, 3, 3]])])
    assert len(load_concepts(f"coco:{tmp_path}/coco/a.json@{tmp_path}/coco/images")) == 1
    assert load_concepts("generated", size=(32, 32), images=1)[0].image.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("photos", {}, "concepts must be one of generated, parquet:FILE"),
        ("coco:a.json", {}, "concepts must be one of"),
        ("generated", {"images": 0}, "images must be at least 1. Got 0"),
        ("generated", {"split": "val"}, "split must be left out for 'generated'"),
        ("generated", {"size": (32, 48)}, "size must be square"),
        ("broden:x", {"size": (32, 48)}, "size must be left out for broden"),
        ("broden:nowhere", {}, "must hold index.csv"),
    ],
)
def test_wrong_specs(spec, options, message):
    with pytest.raises(ValueError, match=message):
        load_concepts(spec, **options)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("index.csv", ",4,6,2,3,", ",4,six,2,3,", "whole numbers from 0 in the column of iw. Got 'six'"),
        ("index.csv", ",4,6,2,3,", ",4,-6,2,3,", "in the column of iw. Got '-6'"),
        ("index.csv", "7;8", "7;" + "9" * 5000, "in the column of a category. Got '9999"),
        ("index.csv", ",4,6,2,3,", ",4,6,2,3,,", "a cell for each column in every row. Got others in row 2"),
        ("index.csv", ",,,7;8", "", "a cell for each column in every row. Got others in row 3"),
        ("label.csv", "300,house", "3e2,house", "label.csv must hold whole numbers from 0 in the column of number"),
        ("label.csv", "300,house", ",house", "in the column of number. Got ''"),
        ("c_part.csv", "0,4,door", "0,four,door", "c_part.csv must hold whole numbers from 0 in the column of number"),
        ("c_part.csv", "door,5", "door,often", "c_part.csv must hold numbers in the column of frequency. Got 'often'"),
        ("c_part.csv", "door,5", "door,nan", "in the column of frequency. Got 'nan'"),
    ],
)  # fmt: skip
def test_broden_cells_that_are_no_numbers_are_named(broden, file, old, new, said):
    text = (broden / file).read_text()
    assert old in text
    (broden / file).write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=re.escape(said)):
        BrodenConcepts(broden)
