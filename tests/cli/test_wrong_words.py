"""Every command with every wrong name: one clear line, exit code 2, and torch is never imported."""

import json
import subprocess
import sys

CHILD = """
import contextlib, io, json, sys

class Heavy(BaseException):
    pass

class Block:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "pandas", "sklearn"):
            raise Heavy(name)

sys.meta_path.insert(0, Block())
from typer.main import get_command
from intertwine.cli.app import app

command = get_command(app)
print(json.dumps({n: [o for p in command.get_command(None, n).params for o in p.opts] for n in command.commands}))
for words in json.loads(sys.stdin.read()):
    told, code = io.StringIO(), "imported torch"
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            command.main(words, prog_name="intertwine")
        except SystemExit as ended:
            code = ended.code
        except Heavy:
            pass
    print(json.dumps([words, code, told.getvalue()]))
"""

A, B = "a.safetensors", "b.safetensors"
RIGHT = {
    "compare": [A, B], "symmetries": [], "mappings": [], "fold": [A, "--out", "x.safetensors"],
    "rotate": [A, "--out", "x.safetensors"], "canonical": [A, "--out", "x.safetensors"], "fingerprint": [A],
    "prune": [A, "--space", "x", "--units", "0", "--out", "x.safetensors"],
    "transport": [A, B, "--out", "x.safetensors"], "same": [A, B],
    "correspond": [A, B], "convert": [A, "--like", B, "--out", "x"], "lineage": [A, B], "diff": [A, B],
    "align": [A, B], "merge": [A, B, "--out", "x.safetensors"], "barrier": [A, B],
    "stitch": [A, B], "dissect": ["--layer", "relu", "--weights", A], "gates": [A],
    "train": ["--out", "x.safetensors"], "zoo": ["train"], "reproduce": [], "runs": ["show", "mine"],
    "models": [], "groups": [], "report": ["x.json"], "demo": [],
}  # fmt: skip
WRONG = {
    "--device": ["cdua", "gpu:0"], "--data": ["digts", "cifar10:nowhere", "images:nowhere"],
    "--model": ["mpl", "hf:nowhere", "gpt2", "nofile.py:f", "mlp:width=8", "mlp:widths=a", "mlp:bn=8", "nomodule:f"],
    "--model-b": ["mpl"], "--model-like": ["mpl"], "--recipe": ["papr"], "--families": ["ful", "rank-x", ","],
    "--concepts": ["generatd", "parquet:none.parquet", "broden:none"], "--measures": ["linear_ckaa", ""],
    "--split": ["tst"], "--method": ["weigths", "sinkhorn:stps=3"], "--kinds": ["permutaton"],
    "--interpolation": ["lnear"], "--repair": ["rpair"], "--size": ["abc", "0x3"], "--input-shape": ["2,x", "0,1"],
    "--gated": ["dgnn"], "--precision": ["float17"], "--memory": ["4XB"], "--alpha": ["x"],
    "--tail-norm": ["evl"], "--start": ["drect"], "--skip": ["c"], "--keep": ["bst"], "--quantile": ["2"],
    "--iou": ["-1"], "--rotations": ["0,x"], "--mean": ["x"], "--grid": ["3"], "--layers": [""], "--ratio": ["1.5"],
    "--level": ["3"], "--scale": ["smok"], "--format": ["spinqant"], "--epochs": ["-1"],
    "--learning-rate": ["-1"], "--batch-size": ["0"], "--seed": ["x"], "--mergekit": ["h.txt"], "--retries": ["-1"],
    "--independent": ["none.safetensors"], "--dtype": ["int8"], "--points": ["1"],
    "--stream": ["haar"], "--heads": ["principal"], "--units": ["0-b", "x"], "--tokenizer": ["letters"],
    "--weights": ["none.pt", "gpt2"], "--examples": ["0"], "--nosuch": ["1"],
}  # fmt: skip
MORE = [
    ["lineage", "tree", "nodir"], ["lineage", A], ["lineage", A, A], ["groups", "rleu"], ["groups", "nomodule:f"],
    ["reproduce", "table1-grups"], ["runs", "shw"], ["runs", "show"], ["zoo", "shw"], ["same", "none", B],
    ["same", A, "gpt2"], ["convert", A, "--like", "none", "--out", "x"], ["convert", A, "--out", "x"],
    ["symmetries", "--model", f"hf:{A}"],
    ["same", A, "folder"], ["same", A, "text.txt"], ["same", A, "nan.safetensors"],
    ["same", A, "half.safetensors"], ["barrier", A], ["stitch", A], ["symmetries"],
    ["symmetries", "mlp", "--model", "mlp"], ["mappings", "gpt2"], ["gates", "none"], ["report", "none.json"],
]  # fmt: skip

SAID = [
    (["same", "nope.safetensors", "b"], "checkpoint must be an existing file. Got 'nope.safetensors'."),
    (["compare", "a.safetensor", "a.safetensors"], "Got 'a.safetensor'. Did you mean 'a.safetensors'?"),
    (["align", "hf:nowhere", "a.safetensors"], "checkpoint must be an existing file. Got 'nowhere'."),
    (["same", "a.safetensors", "a.safetensors", "--model", "resnt20"], "Did you mean 'resnet20'?"),
    (["symmetries", "--model", "hf:nowhere"], "model must be hf:DIRECTORY with a config.json"),
    (["compare", "a.safetensors", "a.safetensors", "--data", "cifar"], "Did you mean 'cifar10'?"),
    (["compare", "a.safetensors", "a.safetensors", "--data", "npz:none.npz"], "Got 'none.npz'."),
    (["compare", "a.safetensors", "a.safetensors", "--split", "tests"], "Did you mean 'test'?"),
    (["compare", "a.safetensors", "a.safetensors", "--measures", "linear_ckaa"], "Did you mean 'linear_cka'?"),
    (["same", "a.safetensors", "cut.safetensors"], "complete safetensors file. Got 'cut.safetensors', 12 bytes"),
    *[
        ([*words, A, B], f"no card lies beside the weights. Got none for '{B}'")
        for words in (
            ["same"], ["diff"], ["correspond"], ["lineage"], ["compare"], ["align"], ["barrier"],
            ["merge", "--out", "m"],
        )
    ],
    (["same", "x.json", "a.safetensors"], "complete torch, safetensors or GGUF file. Got 'x.json', which is none"),
    (["same", "a.safetensors", "text.safetensors"], "which does not read (its header is damaged)"),
    (["symmetries", "--model", "resnet21"], "Did you mean 'resnet20'?"),
    (["symmetries", "--model", "mlp", "--out", "page.pdf"], "--out must end in .html, .json or .parquet."),
    (
        ["merge", "a.safetensors", "a.safetensors", "--out", "m.pt"],
        "or be a folder. Got 'm.pt'",
    ),
    (["mappings", "--model", "mlp", "--format", "spinquan"], "Did you mean 'spinquant'?"),
    (["align", "a.safetensors", "a.safetensors", "--method", "sinkhorm:steps=3"], "Did you mean 'sinkhorn'?"),
    (["barrier", "a.safetensors", "a.safetensors", "--method", "transport"], "--method must be one of"),
    (["gates", "--gated", "dlng"], "Did you mean 'dlgn'?"),
    (["lineage", "a.safetensors", "b.safetensor"], "Got 'b.safetensor'. Did you mean 'b.safetensors'?"),
    (["report", "none.json"], "results must be an existing file. Got 'none.json'."),
    (["comapre"], "error: no such command 'comapre'. Did you mean 'compare'? See 'intertwine --help'."),
    (
        ["compare", "--hepl"],
        "error: no such option --hepl. Did you mean '--help'? See 'intertwine compare --help'.",
    ),
    (["same", "a.safetensors"], "error: missing argument 'B'. See 'intertwine same --help'."),
    (["same", A, B, "--out", "g.txt"], "--out must end in .safetensors."),
    (["fold", A, "--out", "b.txt"], "--out must end in .safetensors"),
    (["train", "--out", "a.pt"], "error: missing option '--model'."),
    (["train", "--model", "mlp", "--out", "a.pt"], "--out must end in .safetensors."),
    (["train", "--model", "mlp", "--out", "a.safetensors", "--epochs", "0"], "invalid value for '--epochs'"),
    (["compare", A, B, A, "--exact"], "--exact must go with two checkpoints. Got 3."),
    (["compare", A, B, A, "--layers-b", "relu1"], "--layers-b must go with two checkpoints. Got 3."),
    (["compare", A, B, "--workers", "2"], "--workers and --ray must go with three checkpoints or more. Got 2."),
    (["compare", A, B, "--layers", ","], "--layers must hold names joined by commas. Got ','"),
    (["compare", A, B, "--device", "meta"], "--device must be one of auto, cpu"),
    (["stitch", A, B, A, "--layers-b", "relu1"], "--model-b and --layers-b must go with two checkpoints. Got 3."),
    (["stitch", A, B, "--split", "train"], "--split must be test or validation, never the data that maps are trained"),
    (["stitch", A, B, "--recipe", "v3"], "--recipe must be one of v1, v2."),
    (["stitch", A, B, "--alpha", "much"], "--alpha, where it is not cv, must be a number. Got 'much'."),
    (["gates", "--epochs", "0"], "--epochs must be at least 1 where no checkpoint is given"),
    (["dissect", "--layer", "x", "--model", "mlp"], "--weights must name a checkpoint. Got none."),
    (["dissect", "--layer", "x", "--weights", A, "--mean", "0.5"], "--mean and --std must be given together."),
    *((["dissect", "--layer", "x", "--model", "mlp", "--train", "1", *words], "--train must be without --weights")
      for words in (["--weights", A], ["--mean", "0.5", "--std", "1"])),
    *((["compare", A, B, "--mean", m, "--std", s], "--mean must be finite, and --std positive.")
      for m, s in (("0.5", "0"), ("0.5,0.5,0.5", "1,1,-1"), ("nan", "1"), ("0.5", "inf"))),
    (["merge", A, B], "--out or --mergekit must be given. Got neither."),
    (["merge", A, "--out", "m.safetensors"], "at least two checkpoints must be given. Got 1."),
    (["merge", A, B, A, "--ratio", "0.3", "--out", "m.safetensors"], "Got 3, which are averaged."),
    (["merge", A, B, "--mergekit", "x.yml", "--method", "transport"], "must be left out with --mergekit"),
    (["runs", "clean"], "NAME must be given to clean. Got none."),
]  # fmt: skip


def tensor(values: bytes, dtype: str, shape: list[int]) -> bytes:
    header = json.dumps({"x.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(values)]}}).encode()
    return len(header).to_bytes(8, "little") + header + values


def told_by(folder, cases):
    """The options of all commands, then what each case ends with."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(cases), capture_output=True, text=True, cwd=folder, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_wrong_words_are_told_in_one_line_without_torch(tmp_path):
    for name in (A, B):
        (tmp_path / name).write_bytes(tensor(bytes(8), "F32", [2]))
    (tmp_path / "nan.safetensors").write_bytes(tensor(bytes(4) + b"\x00\x00\xc0\x7f", "F32", [2]))
    (tmp_path / "half.safetensors").write_bytes(tensor(b"\x80\x7f\x00\x00", "BF16", [2]))  # infinity
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / A).read_bytes()[:12])
    (tmp_path / "text.safetensors").write_text("no tensors at all, but more than eight bytes")
    (tmp_path / "text.txt").write_text("no tensors")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    known = told_by(tmp_path, [])[0]
    assert known.keys() == RIGHT.keys()
    assert set(WRONG) - {"--nosuch"} <= {option for options in known.values() for option in options}
    cases = (
        [
            [command, *words, option, value]
            for command, words in RIGHT.items()
            for option, values in WRONG.items()
            if option in (*known[command], "--nosuch")
            for value in values
            if option not in words
        ]
        + MORE
        + [words for words, _ in SAID]
    )
    _, *answers = told_by(tmp_path, cases)
    wrong = []
    for words, code, told in answers:
        lines = [line for line in told.splitlines() if line]
        if code != 2 or len(lines) != 1 or not lines[0].startswith("error: "):
            wrong.append((words, code, told))
    assert not wrong
    for words, message in SAID:
        assert message in next(told for given, _, told in answers if given == words), words
    assert len(answers) == len(cases) > 300
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["folder"]


def test_a_file_beside_the_weights_names_the_directory(run, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    assert run("fold", "tokenizer.json", "--out", "x").error.endswith("(2 bytes). Give its directory, '.'.")


def test_names_of_the_hub_are_answered(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    ran = run("mappings", "meta-llama/Llama-3-8B")
    assert "run 'hf download meta-llama/Llama-3-8B --local-dir Llama-3-8B', then give hf:Llama-3-8B." in ran.error
    place = tmp_path / "cache" / "models--meta-llama--Llama-3-8B" / "snapshots" / "abc"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    for words in (["mappings", "meta-llama/Llama-3-8B"], ["same", "hf:meta-llama/Llama-3-8B", "x"]):
        assert f"cache: give hf:{place}." in run(*words).error
