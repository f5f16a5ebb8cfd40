"""The command ``symmetries``."""

import json


def test_table_page_and_reasons(run, tmp_path):
    page = tmp_path / "page.html"
    assert "12 spaces" in run.done("symmetries", "--model", "resnet20:width=4", "--out", page).out
    text = page.read_text(encoding="utf-8")
    assert "The group of each space" in text and "layer1.0.conv1.weight" in text
    ran = run("symmetries", "--model", "resnet20:width=4", "--meta", "--explain", "conv1.weight")
    assert ran.code == 0 and "conv1.weight[1] (size 3): fixed, input" in ran.out


def test_json_holds_the_description(run):
    ran = run("symmetries", "--model", "resnet20:width=4", "--input-shape", "2,3,16,16", "--json")
    described = json.loads(ran.out)
    assert len(described["spaces"]) == 12 and described["dim"] > 0


def test_the_example_fits_the_arguments_of_the_network(run):
    for spec in ("digits_cnn:channels=3", "mlp:shape=2-5-5,widths=8"):
        assert run("symmetries", "--model", spec, "--meta").code == 0


def test_bad_use(run):
    for words, message in (
        ((), "MODEL must be given once"),
        (("--model", "resnet20", "--input-shape", "2,x"), "--input-shape must be"),
        (("--model", "resnet20", "--input-shape", "0,3,8,8"), "--input-shape must be positive"),
        (("--model", "digits_cnn", "--input-shape", "2,3,8,8"), "model must run on the example inputs"),
        (("--model", "digits_cnn", "--out", "page.txt"), "--out must end in .html, .json or .parquet"),
        (("--model", "digits_cnn", "--out", "."), "--out must be a file"),
        (("--model", "resnet20", "--explain", "nothing"), "--explain must name"),
        (("--model", "resnet20", "--explain", "conv1.wieght"), "Did you mean 'conv1.weight'"),
    ):
        ran = run("symmetries", *words)
        assert ran.code == 2 and message in ran.err
