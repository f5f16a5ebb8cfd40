"""Frozen words of the command line: help, errors, results and pages of every command on small work.

    python tests/frozen/commands.py record     write ``commands.json`` beside this file, at the code as it is
    python tests/frozen/commands.py compare    say what the code says otherwise now; exit code 1 if anything

Times, dates, versions and places are taken out; text must be the same, and numbers up to 1e-6.
"""

import hashlib
import html
import json
import math
import os
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
LONG = 5_000  # characters of data from which on a digest stands for it
RECORD = Path(__file__).with_suffix(".json")

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
AWAY = [
    (re.compile(r'"(seconds|date|duration|hours|timestamp)": [^,}\]]+'), r'"\1": -'),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|seconds|minutes|min|hours|h|MB|GB|MiB|GiB)\b"), r"- \2"),
    (re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(\+00:00|Z)?"), "DATE"),
    (re.compile(r'"(commit|source)": "[0-9a-f]*"'), r'"\1": -'),
    (re.compile(r"(?m)^[0-9a-f]{8}$"), "COMMIT"),
    (re.compile(r"\d+(\.\d+)? jobs/s"), "- jobs/s"),
    (re.compile(r"/tmp/[\w./-]*"), "PLACE"),
    (re.compile(rf"(?<![\d.]){re.escape(version('intertwine'))}(?![\d.]*\d)"), "VERSION"),
]

# Wrong words: each must be refused in one line.
WRONG = [
    [], ["nothing"], ["compere"], ["--threads", "0", "models"], ["compare"], ["compare", "a.safetensors"],
    ["compare", "none.safetensors", "b.safetensors"], ["compare", "a.safetensors", "b.safetensor"],
    ["compare", *"ab", "--model", "resnet21"], ["compare", "a.safetensors", "b.safetensors", "--model", "resnet21"],
    ["compare", "a.safetensors", "b.safetensors", "--model", "mlp:wide=3"],
    ["compare", "a.safetensors", "b.safetensors", "--model", "mlp:bn=3"],
    ["compare", "a.safetensors", "b.safetensors", "--model", "nowhere.at.all:f"],
    ["compare", "a.safetensors", "b.safetensors", "--model", "hf:nowhere"],
    ["compare", "a.safetensors", "b.safetensors", "--data", "didgits"],
    ["compare", "a.safetensors", "b.safetensors", "--data", "npz:none.npz"],
    ["compare", "a.safetensors", "b.safetensors", "--data", "images:none"],
    ["compare", "a.safetensors", "b.safetensors", "--data", "digits:3"],
    ["compare", "a.safetensors", "b.safetensors", "--measures", "linear_ck"],
    ["compare", "a.safetensors", "b.safetensors", "--measures", ","],
    ["compare", "a.safetensors", "b.safetensors", "--layers", "nothing"],
    ["compare", "a.safetensors", "b.safetensors", "--layers", "relu2", "--layers-b", "no.such"],
    ["compare", "a.safetensors", "b.safetensors", "--split", "tets"],
    ["compare", "a.safetensors", "b.safetensors", "--memory", "lots"],
    ["compare", "a.safetensors", "b.safetensors", "--device", "gpu"],
    ["compare", "a.safetensors", "b.safetensors", "--mean", "0.5"],
    ["compare", "a.safetensors", "b.safetensors", "--mean", "0.5,1", "--std", "1,1"],
    ["compare", "a.safetensors", "b.safetensors", "--null", "-1"],
    ["compare", "a.safetensors", "b.safetensors", "--nul", "3"],
    ["compare", "a.safetensors", "b.safetensors", "--out", "a.safetensors"],
    ["compare", "norms.safetensors", "b.safetensors"],
    ["compare", "norms.safetensors", "b.safetensors", "--model", "mlp", "--data", "digits"],
    ["compare", "text.safetensors", "b.safetensors"], ["compare", "pickle.pt", "b.safetensors"],
    ["demo", "--out", "a.safetensors"],
    ["symmetries"], ["symmetries", "resnet20", "--model", "resnet20"], ["symmetries", "mlp", "--out", "page.png"],
    ["symmetries", "mlp", "--explain", "nothing"], ["symmetries", "mlp", "--input-shape", "2,a"],
    ["symmetries", "json:loads"], ["symmetries", "torch.nn:Identity"], ["symmetries", "torch.nn:Lineer"],
    ["mappings", "mlp", "--format", "none"], ["mappings", "mlp", "--out", "x.png"],
    ["fold", "a.safetensors"], ["fold", "a.safetensors", "--out", "a.safetensors"],
    ["fold", "a.safetensors", "--out", "f.pt"],
    ["same", "a.safetensors"], ["same", "a.safetensors", "norms.safetensors"],
    ["same", "a.safetensors", "b.safetensors", "--out", "x.json"],
    ["lineage", "a.safetensors"], ["lineage", "a.safetensors", "a.safetensors"], ["lineage", "tree", "nowhere"],
    ["lineage", "tree", "empty"], ["lineage", "a.safetensors", "b.safetensors", "--level", "2"],
    ["diff", "a.safetensors", "b.safetensors", "--out", "x.txt"],
    ["align", "a.safetensors", "b.safetensors", "--method", "hungarian"],
    ["align", "a.safetensors", "b.safetensors", "--method", "sinkhorn:step=3"],
    ["align", "a.safetensors", "b.safetensors", "--method", "sinkhorn:steps=many"],
    ["align", "a.safetensors", "b.safetensors", "--method", "transport:x=3"],
    ["align", "a.safetensors", "b.safetensors", "--kinds", "rotation"],
    ["align", "a.safetensors", "b.safetensors", "--sharded", "--method", "activations"],
    ["merge", "a.safetensors", "--out", "m.safetensors"], ["merge", "a.safetensors", "b.safetensors"],
    ["merge", "a.safetensors", "b.safetensors", "--out", "m.pt"],
    ["merge", "a.safetensors", "b.safetensors", "--out", "m", "--ratio", "2"],
    ["merge", "a.safetensors", "b.safetensors", "a.safetensors", "--out", "m", "--ratio", "0.3"],
    ["merge", "a.safetensors", "b.safetensors", "--mergekit", "m.txt"],
    ["merge", "a.safetensors", "b.safetensors", "--mergekit", "m.yml"],
    ["merge", "a.safetensors", "b.safetensors", "--out", "m", "--repair", "all"],
    ["merge", "a.safetensors", "b.safetensors", "--out", "m", "--interpolation", "cubic"],
    ["merge", "a.safetensors", "b.safetensors", "--out", "m", "--dtype", "int8"],
    ["barrier", "a.safetensors", "b.safetensors", "--points", "2"], ["barrier", "a.safetensors"],
    ["stitch", "a.safetensors", "b.safetensors", "--split", "train"],
    ["stitch", "a.safetensors", "b.safetensors", "--families", "rank-x"],
    ["stitch", "a.safetensors", "b.safetensors", "--families", "fulll"],
    ["stitch", "a.safetensors", "b.safetensors", "--recipe", "v3"],
    ["stitch", "a.safetensors", "b.safetensors", "--method", "neither"],
    ["stitch", "a.safetensors", "b.safetensors", "--alpha", "much"],
    ["stitch", "a.safetensors", "b.safetensors", "--layers", "relu1,relu2", "--layers-b", "relu1"],
    ["stitch", "a.safetensors", "b.safetensors", "a.safetensors", "--model-b", "mlp"],
    ["dissect"], ["dissect", "--layer", "x"], ["dissect", "--layer", "x", "--weights", "a.safetensors", "--grid", "4"],
    ["dissect", "--layer", "x", "--weights", "a.safetensors", "--rotations", "a"],
    ["dissect", "--layer", "x", "--weights", "a.safetensors", "--concepts", "nothing"],
    ["dissect", "--layer", "x", "--model", "mlp", "--train", "1"],
    ["gates", "--epochs", "0"], ["gates", "a.safetensors", "--gated", "dgnn"],
    ["gates", "norms.safetensors", "--model", "small_convnext:widths=4-4,blocks=1", "--data", "digits"],
    ["gates", "a.safetensors", "--example", "5000", "--gated", "none"],
    ["train"], ["train", "--model", "mlp", "--out", "x.pt"], ["train", "--model", "mlp", "--recipe", "none",
     "--out", "x.safetensors"], ["train", "--model", "mlp", "--precision", "int4", "--out", "x.safetensors"],
    ["zoo"], ["zoo", "train"], ["zoo", "train", "--model", "torch.nn:Identity"], ["zoo", "show", "--out", "none"],
    ["zoo", "trian"], ["zoo", "train", "--model", "mlp", "--recipe", "steam"],
    ["reproduce", "table0"], ["reproduce", "table1-groups", "--scale", "huge"], ["runs", "show"], ["runs", "show", "x"],
    ["runs", "resume", "x/y"], ["models", "more"], ["groups", "reluu"], ["groups", "torch.nn.functional:rilu"],
    ["groups", "relu", "--dim", "0"], ["report", "none.json"], ["report", "a.json"], ["report", "text.safetensors"],
]  # fmt: skip

FURTHER = {
    "groups, all": ["groups"], "models": ["models"], "reproduce, list": ["reproduce"],
    "reproduce, plan": ["reproduce", "table1-groups", "--dry-run"],
    "runs, none": ["runs", "--runs", "no runs"], "runs, show": ["runs", "show", "mlp", "--runs", "no runs"],
    "zoo, show": ["zoo", "show"], "explain": ["symmetries", "mlp", "--explain", "linear1.weight"],
    "same file": ["same", "a.safetensors", "a.safetensors"], "diff file": ["diff", "a.safetensors", "a.safetensors"],
    "same sharded": ["same", "a.safetensors", "b.safetensors", "--sharded"],
    "align sharded": ["align", "a.safetensors", "b.safetensors", "--sharded", "--out", "sharded"],
    "align, sinkhorn": ["align", "a.safetensors", "b.safetensors", "--method", "sinkhorn:steps=5", "--out", "sinkhorn"],
    "lineage tree": ["lineage", "tree", "zoo", "--out", "tree.html"],
    "merge three": ["merge", "a.safetensors", "b.safetensors", "zoo 3.safetensors", "--out", "three.safetensors",
                    "--repair", "none"],
    "merge, spherical": ["merge", "a.safetensors", "b.safetensors", "--out", "s.safetensors", "--interpolation",
                         "spherical", "--ratio", "0.3", "--dtype", "bfloat16", "--repair", "none"],
    "merge, no method": ["merge", "a.safetensors", "b.safetensors", "--out", "n.safetensors", "--method", "none",
                         "--repair", "none"],
    "gates of two": ["gates", "a.safetensors", "b.safetensors", "--gated", "none", "--examples", "100",
                     "--kernel-examples", "20", "--out", "gates of two"],
    "gates, converted": ["gates", "a.safetensors", "--gated", "dlgn,dlgn-sf-ones,dgn-fr", "--epochs", "0",
                         "--examples", "60", "--kernel-examples", "20", "--out", "converted"],
    "gates of a gated one": ["gates", "converted/dlgn.safetensors", "--examples", "60", "--kernel-examples", "20",
                             "--out", "gated one"],
    "a gated one, converted": ["gates", "converted/dlgn.safetensors", "--gated", "dgn"],
    "not ours": ["merge", "a.safetensors", "b.safetensors", "--out", "norms.safetensors", "--repair", "none"],
    "page": ["report", "diff.json", "--out", "diff.html"],
    "quiet": ["--quiet", "diff", "a.safetensors", "b.safetensors"],
    "version": ["--version"], "help": ["--help"],
}  # fmt: skip


def said(words: list[str]) -> dict[str, object]:
    from typer.testing import CliRunner

    from intertwine.cli import app

    ran = CliRunner().invoke(app, words, terminal_width=100)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    progress = re.compile(r"[^\n]*\r")
    return {"code": ran.exit_code, "out": lines(ran.stdout), "err": lines(progress.sub("", ran.stderr))}


def lines(text: str) -> list[str]:
    for pattern, instead in AWAY:
        text = pattern.sub(instead, text)
    return text.splitlines()


def written(folder: Path) -> dict[str, object]:
    """What is in all files: the words of pages, the text of data, names and sums of tensors."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and "work" not in p.parts)
    # pages of reproductions say seconds and the state of the code
    return {str(p.relative_to(folder)): "" if "smoke" in p.parts else content(p) for p in files}


def content(path: Path) -> object:
    if path.suffix == ".html":
        body = re.sub(r"(?s)<(script|style|svg|math)\b.*?</\1>", " ", path.read_text())
        text = html.unescape(re.sub(r"<[^>]*>", "\n", body))
        return [line.strip() for line in lines(text) if line.strip()]
    if path.suffix == ".safetensors" and path.name != "text.safetensors":
        from safetensors.torch import load_file

        return {k: [str(x.dtype), *x.shape, float(x.double().sum())] for k, x in load_file(path).items()}
    if path.suffix == ".parquet":
        import pandas

        return lines(pandas.read_parquet(path).round(6).to_csv())
    if path.suffix not in (".json", ".yml", ".yaml", ".py"):
        return ""
    found = lines(path.read_text())
    if path.name.endswith(".index.json"):  # written in the order of a set
        found = sorted(line.rstrip(",") for line in found)
    if sum(map(len, found)) < LONG:
        return found
    shorter = NUMBER.sub(lambda number: f"{float(number[0]):.5g}", "\n".join(found))
    return hashlib.blake2b(shorter.encode(), digest_size=8).hexdigest()


def record() -> dict[str, object]:
    import torch
    from every_command import COMMANDS, prepare

    from intertwine.cli.app import COMMANDS as NAMES
    from intertwine.lab.training import RECIPES

    os.environ["COLUMNS"] = "100"
    torch.set_num_threads(1)
    RECIPES["digits"] = RECIPES["digits"].but(epochs=1)
    found: dict[str, object] = {f"help of {name}": said([name, "--help"]) for name in NAMES}
    for kind in ("text", "json"):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            prepare()
            Path("text.safetensors").write_text("no tensors " * 200)
            Path("pickle.pt").write_bytes(b"\x80\x02cos\nsystem\nq\x00.")
            Path("empty").mkdir()
            torch.save({"x": torch.zeros(2)}, "x.pt")
            end = ["--json"] if kind == "json" else []
            for name, words in COMMANDS.items():
                found[f"{name}, {kind}"] = said([*map(str, words), *end])
                if name == "train another seed":
                    third = [str(word) for word in words]
                    said([*third[:-3], "2", "--out", "zoo 3.safetensors"])
                if name == "diff":
                    said(["diff", "a.safetensors", "b.safetensors", "--out", "diff.json"])
            for name, words in FURTHER.items():
                found[f"{name}, {kind}"] = said([*words, *end])
            if kind == "text":
                found |= {f"wrong: {' '.join(words)}": said(words) for words in WRONG}
                found["files"] = written(Path(folder))
            os.chdir("/")
    return found


def differences(old: object, new: object, where: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [d for k in {**old, **new} for d in differences(old.get(k), new.get(k), f"{where} > {k}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [d for k, (a, b) in enumerate(zip(old, new)) for d in differences(a, b, f"{where}[{k}]")]
    texts = [json.dumps(value) if not isinstance(value, str) else value for value in (old, new)]
    words = [NUMBER.split(text) for text in texts]
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in texts]
    same = words[0] == words[1] and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(*numbers))
    return [] if same else [f"{where}:\n  was {texts[0][:2000]}\n  is  {texts[1][:2000]}"]


def main(what: str) -> int:
    found = json.loads(json.dumps(record()))
    if what == "record":
        RECORD.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
        print(f"{len(found)} answers")
        return 0
    different = differences(json.loads(RECORD.read_text()), found)
    print("\n".join(different) or f"all {len(found)} answers are the same")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
