"""SmoothQuant's smoothing by the mappings found, with 8-bit rounding to nearest: error of the outputs before and after.

python benchmarks/smoothing.py --text tinyshakespeare.txt                  a decoder trained here on the text
python benchmarks/smoothing.py --text reactions.txt --bert DIRECTORY       a trained BERT; one example in a line

Inputs of linear layers have one step for the whole tensor, weights one for each row. s = a^alpha / w^(1 - alpha) with
the largest input a and the largest weight w of each channel (Xiao et al., SmoothQuant, ICML 2023).
"""

import argparse
import copy
import re
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

import intertwine as iw

ALPHAS = (0.25, 0.5, 0.75)
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


def linears(model: nn.Module, ignore: str = "lm_head") -> dict[str, nn.Linear]:
    """Linear layers that are quantised."""
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != ignore}


def rounded(x: Tensor, bits: int, dim: int | None = None) -> Tensor:
    """The nearest numbers on a symmetric grid, one step for all or for each row."""
    largest = x.abs().max() if dim is None else x.abs().amax(dim, keepdim=True)
    step = largest.clamp_min(1e-12) / (2 ** (bits - 1) - 1)
    return (x / step).round() * step


def quantised(model: nn.Module, bits: int) -> nn.Module:
    """A copy that rounds the weights and inputs of its linear layers."""
    twin = copy.deepcopy(model)
    for layer in linears(twin).values():
        layer.weight.data = rounded(layer.weight.data, bits, 1)
        layer.register_forward_pre_hook(lambda _, x: (rounded(x[0], bits),))
    return twin


@torch.no_grad()
def smoothed(model: nn.Module, entries: tuple, batch: dict[str, Tensor], alpha: float) -> nn.Module:
    """A copy with every mapping applied, one after the other, on the largest inputs of a batch."""
    twin, largest = copy.deepcopy(model), {}
    note = lambda m, x: largest.__setitem__(m, x[0].abs().flatten(0, -2).amax(0))
    hooks = [layer.register_forward_pre_hook(note) for layer in linears(twin).values()]
    twin(**batch)
    for hook in hooks:
        hook.remove()
    modules = dict(twin.named_modules())
    for place in (place for entry in entries for place in entry.places):
        smooth, balance = modules[place.writes[0]], [modules[name] for name in place.reads]
        columns = torch.stack([layer.weight.abs().amax(0) for layer in balance]).amax(0)
        s = largest[balance[0]].clamp_min(1e-5) ** alpha / columns.clamp_min(1e-5) ** (1 - alpha)
        if len(s) != smooth.weight.shape[0]:
            continue  # grouped heads: one scale for several inputs
        for layer in balance:
            layer.weight *= s
        smooth.weight /= s if smooth.weight.ndim == 1 else s[:, None]
        if getattr(smooth, "bias", None) is not None:
            smooth.bias /= s
    return twin


@torch.no_grad()
def report(model: nn.Module, calibration: dict, test: dict, outputs: Callable[[nn.Module, dict], Tensor]) -> None:
    """Print the mappings and the errors."""
    found = iw.symmetries(model, {k: v[:2] for k, v in test.items()}).mappings()
    print(f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} weights")
    for entry in found.entries:
        print(f"  {entry}: {len(entry.places)} places, error {entry.proof.error:.1e}")
    exact = outputs(model, test)
    error = lambda net: float((outputs(net, test) - exact).norm() / exact.norm())
    for bits in (8, 6, 4):
        rows = [f"{bits} bits: {error(quantised(model, bits)):.3%}"]
        for alpha in ALPHAS:
            smooth = smoothed(model, found.entries, calibration, alpha)
            assert error(smooth) < 1e-4, "smoothing must keep the function"
            rows.append(f"alpha {alpha:g}: {error(quantised(smooth, bits)):.3%}")
        print("  " + "; ".join(rows), flush=True)


def decoder(text: str, steps: int) -> tuple[nn.Module, dict, dict]:
    """A Llama of four layers on characters; split by position, 90 % for training."""
    known = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([known[c] for c in text])
    train, rest = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, vocab_size=len(known),
        max_position_embeddings=128, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for step in range(steps):
        batch = _lines(train, 24)
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 99:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)
    return model.eval(), {"input_ids": _lines(train, 32)}, {"input_ids": _lines(rest, 32)}


def _lines(ids: Tensor, count: int, length: int = 96) -> Tensor:
    return torch.stack([ids[i : i + length] for i in torch.randint(len(ids) - length, (count,)).tolist()])


def bert(directory: Path, lines: list[str]) -> tuple[nn.Module, dict, dict]:
    """A trained BERT, and its tokens of chemical reactions: half of the lines for calibration."""
    known = {word: i for i, word in enumerate((directory / "vocab.txt").read_text().split("\n"))}
    state = torch.load(directory / "pytorch_model.bin", weights_only=True)
    model = transformers.BertModel(transformers.BertConfig.from_pretrained(directory), add_pooling_layer=False)
    own = {n.removeprefix("bert."): t for n, t in state.items()}
    missing = model.load_state_dict(own, strict=False).missing_keys
    assert not missing, missing
    texts = [["[CLS]", *SMILES.findall(line), "[SEP]"] for line in lines]
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for row, words in zip(ids, texts):
        row[: len(words)] = torch.tensor([known.get(word, known["[UNK]"]) for word in words])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    return model.eval(), {k: v[::2] for k, v in inputs.items()}, {k: v[1::2] for k, v in inputs.items()}


def main() -> None:
    """Make or load the network, smooth, round, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, help="a text to train and round on; without one nothing is run")
    parser.add_argument("--bert", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    asked = parser.parse_args()
    if asked.text is None:
        print("Not run: give a text with --text FILE.")
        return
    text = asked.text.read_text()
    if asked.bert:
        report(*bert(asked.bert, text.split()), lambda m, x: m(**x).last_hidden_state[x["attention_mask"].bool()])
    else:
        report(*decoder(text, asked.steps), lambda m, x: m(**x).logits)


if __name__ == "__main__":
    main()
