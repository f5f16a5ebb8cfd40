"""The table of raw values: found again bit for bit, pages are made of it alone, bad files are refused."""

import contextlib
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from tiny_experiment import TINY

from intertwine.errors import DataError
from intertwine.lab.experiments import COLUMNS, Values, experiment
from intertwine.lab.experiments.values import first_difference

FACTS = {"scale": "small", "data": "cifar10", "seed": 0, "hours": 0.25, "notes": ["one", "two"], "torch": "2"}
NUMBERS = np.random.default_rng(0).normal(1.0, 0.2, 6)


def rows():
    pairs = [("0", "1"), ("0", "2"), ("1", "2"), ("0", "3"), ("1", "3"), ("2", "3")]
    yield from (
        {"experiment": "tiny", "arm": "zoo", "network": a, "partner": b, "statistic": "distance", "value": v}
        for (a, b), v in zip(pairs, NUMBERS)
    )
    for block in range(3):
        for network in "01":
            own = {"arm": "zoo", "network": network, "block": block, "images": 100}
            yield {"statistic": "accuracy", "value": 0.5 + 0.1 * block, **own}
    yield {"statistic": "odd", "value": math.nan, "layer": "relu1", "partner_layer": "relu2", "draws": 7}


@pytest.fixture
def values():
    return Values.of(rows(), FACTS)


@pytest.fixture
def saved(values, tmp_path):
    return values.save(tmp_path / "deep" / "tiny.parquet")


def test_what_is_saved_is_found_again_bit_for_bit(values, saved):
    again = Values.load(saved)
    pd.testing.assert_frame_equal(again.frame, values.frame, check_exact=True)
    assert again.facts == FACTS
    assert again.digest() == values.digest()
    assert first_difference(values, again) == ""
    assert not list(saved.parent.glob(".*"))


def test_pandas_alone_reads_the_table(saved):
    frame = pd.read_parquet(saved)
    assert list(frame.columns) == list(COLUMNS)
    assert frame[frame["statistic"] == "distance"]["value"].mean() == pytest.approx(NUMBERS.mean())


def test_the_page_from_saved_values_is_the_same_to_the_byte(values, saved):
    said = lambda v: json.dumps(TINY.page(v).to_dict(), sort_keys=True)
    assert said(Values.load(saved)) == said(values)
    assert str(TINY.page(Values.load(saved))) == str(TINY.page(values))
    assert TINY.page(values).claims[0].held is True


def test_saving_twice_gives_the_same_bytes(saved, tmp_path):
    again = Values.load(saved).save(tmp_path / "again.parquet")
    assert again.read_bytes() == saved.read_bytes()


def test_samples_are_by_network_pair_and_block(values):
    pairs = values.sample("distance", "zoo")
    assert len(pairs.numbers) == 6
    assert pairs.networks == ["0", "1", "2", "3"]
    blocks = values.sample("accuracy", "zoo")
    assert blocks.numbers[("0",)] == pytest.approx([0.5, 0.6, 0.7])
    assert values.sample("odd", "", "relu1", "relu2").numbers == {}  # unknown
    assert values.arms("accuracy") == ["zoo"]
    with pytest.raises(ValueError, match=r"values must hold one 'distance'. Got 0"):
        values.number("distance")


def test_shares_of_images_without_blocks_have_a_binomial_variance():
    row = lambda network, value: {"network": network, "statistic": "accuracy", "value": value, "images": 50}
    found = Values.of([row("0", 0.6), row("1", 0.8)], {}).sample("accuracy")
    assert found.variance == pytest.approx(0.7 * 0.3 / 50)


# --- files that are not what they should be ------------------------------------------------------


def rewritten(path, change, said=None):
    """The same file with another table, or other metadata."""
    table = change(parquet.read_table(path))
    if said is not None:
        table = table.replace_schema_metadata({b"intertwine": json.dumps(said).encode()})
    parquet.write_table(table, path)


SPOILT = {
    "a column is missing": (lambda p: rewritten(p, lambda t: t.drop_columns(["partner"])), "a column 'partner'"),
    "of another version": (lambda p: rewritten(p, lambda t: t, {"format": 2}), "of format 1. Got 2 in"),
    "of anyone": (lambda p: pd.DataFrame({"x": [1]}).to_parquet(p), "of format 1. Got none in"),
    "a list for facts": (lambda p: rewritten(p, lambda t: t, [1]), "of format 1. Got none in"),
    "half the rows": (lambda p: rewritten(p, lambda t: t.slice(0, 6)), "whole. Got 6 rows of 13"),
    "no rows": (lambda p: rewritten(p, lambda t: t.slice(0, 0), {"format": 1, "facts": {}}), "whole. Got 0 rows of 0"),
    "a list for its facts": (lambda p: rewritten(p, lambda t: t, {"format": 1, "facts": [1]}), "must be whole"),
    "words for numbers": (
        lambda p: rewritten(
            p, lambda t: t.set_column(t.column_names.index("value"), "value", pa.array(["a"] * len(t)))
        ),
        "the columns' types",
    ),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-40]), "readable Parquet"),
    "half": (lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]), "readable Parquet"),
    "empty": (lambda p: p.write_bytes(b""), "readable Parquet"),
    "text": (lambda p: p.write_text("no Parquet"), "readable Parquet"),
    "gone": (lambda p: p.unlink(), "Got nothing at"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_spoilt_file_is_one_clear_line(spoilt, saved):
    spoil, message = SPOILT[spoilt]
    spoil(saved)
    with pytest.raises(DataError, match=message) as raised:
        Values.load(saved)
    assert "\n" not in str(raised.value)
    assert str(saved) in str(raised.value)
    assert "intertwine reproduce" in str(raised.value)


@pytest.mark.parametrize("place", range(8, 400, 37))
def test_noise_in_the_middle_is_refused_or_harmless(place, saved):
    """Where bytes of a page of numbers are hit, reading fails or gives a table; never another error."""
    data = bytearray(saved.read_bytes())
    data[-place] ^= 0xFF
    saved.write_bytes(bytes(data))
    with contextlib.suppress(DataError):
        assert list(Values.load(saved).frame) == list(COLUMNS)


def test_values_of_another_experiment_are_refused(values):
    with pytest.raises(DataError, match=r"values must be of e7-counts\. Got those of tiny\."):
        experiment("e7-counts").page(values)


def test_rows_with_other_columns_are_refused():
    with pytest.raises(ValueError, match=r"rows must have the columns .* only. Got colour"):
        Values.of([{"statistic": "x", "value": 1.0, "colour": "red"}], {})


# --- differences ---------------------------------------------------------------------------------


def changed(**change):
    listed = list(rows())
    listed[0] = {**listed[0], **change}
    return Values.of(listed, FACTS)


def test_the_first_difference_is_said_in_words(values):
    other = changed(value=NUMBERS[0] * (1 + 1e-9))
    said = first_difference(values, other)
    assert said.startswith("1 of 13 numbers differ, such as tiny, zoo, 0, 1, distance: ")
    assert first_difference(values, other, relative=1e-6) == ""
    assert first_difference(values, changed(value=NUMBERS[0] * 1.01), relative=1e-6) != ""
    assert "2 rows are in one table only" in first_difference(values, changed(arm="other"))
    assert first_difference(values, Values.of([*rows(), next(rows())], FACTS))
    assert first_difference(values, changed(value=math.nan)) != ""


def test_order_and_facts_do_not_count_but_every_bit_does(values):
    turned = Values.of(list(rows())[::-1], {"other": 1})
    assert turned.digest() == values.digest()
    assert first_difference(values, turned) == ""
    assert changed(value=math.nextafter(NUMBERS[0], 9)).digest() != values.digest()
    assert changed(arm="other").digest() != values.digest()
