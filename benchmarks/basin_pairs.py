"""Pairs of networks for ``basins.py``: what they are, what they learn, and how they are trained, a minute each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor | dict[str, Tensor], Tensor]
LENGTH = 64  # characters, or bytes
WIDTH = 64
_MASKED = 0.15  # share of the characters that an encoder is to guess


class Logits(nn.Module):
    """A model of transformers whose other outputs, which would fix the basis of its streams, are left out."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **inputs: Tensor) -> Tensor:
        """The logits."""
        return self.net(**inputs).logits


class Text:
    """The characters, or the bytes, of a text; the last tenth is kept for tests."""

    def __init__(self, path: Path, as_bytes: bool = False) -> None:
        text = path.read_bytes() if as_bytes else path.read_text()
        places = {one: k for k, one in enumerate(range(256) if as_bytes else sorted(set(text)))}
        self.tokens, self.size = torch.tensor([places[one] for one in text]), len(places)

    def windows(self, size: int, length: int, train: bool, generator: torch.Generator) -> Tensor:
        """Random pieces ``(size, length)``."""
        cut = int(0.9 * len(self.tokens))
        some = self.tokens[:cut] if train else self.tokens[cut:]
        starts = torch.randint(len(some) - length + 1, (size,), generator=generator)
        return some[starts[:, None] + torch.arange(length)]

    def next_ones(self, size: int, train: bool, generator: torch.Generator) -> Batch:
        """Characters, each to be followed by the next one."""
        x = self.windows(size, LENGTH + 1, train, generator)
        return {"input_ids": x[:, :-1]}, x[:, 1:]

    def masked_ones(self, size: int, train: bool, generator: torch.Generator) -> Batch:
        """Characters of which some are masked, by a token after all others."""
        x = self.windows(size, LENGTH, train, generator)
        hidden = torch.rand(x.shape, generator=generator) < _MASKED
        return {"input_ids": x.masked_fill(hidden, self.size)}, x.masked_fill(~hidden, -100)

    def continued(self, size: int, train: bool, generator: torch.Generator) -> Batch:
        """Characters for an encoder, and those that follow for a decoder, which starts from a token of its own."""
        x = self.windows(size, LENGTH, train, generator)
        source, target = x.chunk(2, 1)
        shifted = F.pad(target[:, :-1], (1, 0), value=self.size)
        return {"input_ids": source, "decoder_input_ids": shifted}, target


class Images:
    """CIFAR-10, under the name by which a model takes pictures."""

    def __init__(self, path: Path, name: str = "") -> None:
        from intertwine.lab.data import load

        data, self.name = load(f"cifar10:{path}"), name
        self.train, self.test = (data.loader(split) for split in ("train", "test"))

    def pictures(self, size: int, train: bool, generator: torch.Generator) -> Batch:
        """Pictures and their classes."""
        data = self.train if train else self.test
        x, y = data.batch(torch.randint(len(data.split), (size,), generator=generator))
        return {self.name: x} if self.name else x, y


@dataclass(frozen=True)
class Pair:
    """Two networks of one kind that were trained alike from two seeds."""

    build: Callable[[], nn.Module]
    batch: Callable[[int, bool, torch.Generator], Batch]
    steps: int = 1000
    rate: float = 3e-3
    narrow: bool = False  # trained in bfloat16, in half the time where matrices are wide

    def batches(self, count: int, size: int, seed: int, train: bool = True) -> list[Batch]:
        """Batches of the data to learn from, or of those to be tested on."""
        generator = torch.Generator().manual_seed(seed)
        return [self.batch(size, train, generator) for _ in range(count)]

    def trained(self, seed: int, kept: Path) -> nn.Module:
        """The network of a seed; read where it was trained before."""
        from safetensors.torch import load_model, save_model

        torch.manual_seed(seed)
        model = self.build()
        if kept.exists():
            load_model(model, kept)
            return model.eval()
        adam = torch.optim.AdamW(model.parameters(), self.rate, weight_decay=0.01)
        cycle = torch.optim.lr_scheduler.OneCycleLR(adam, self.rate, self.steps, pct_start=0.1)
        generator = torch.Generator().manual_seed(1000 + seed)
        for _ in range(self.steps):
            inputs, labels = self.batch(32, True, generator)
            adam.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.narrow):
                found = called(model.train(), inputs)
            loss = F.cross_entropy(found.flatten(0, -2).float(), labels.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            cycle.step()
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_model(model.eval(), str(kept))
        return model


def called(model: nn.Module, inputs: Tensor | dict[str, Tensor]) -> Tensor:
    """The logits of a batch."""
    found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return found if isinstance(found, Tensor) else found.logits


class Stored(Pair):
    """The two character GPTs of the shared data."""

    def trained(self, seed: int, kept: Path) -> nn.Module:
        """The first or the second one."""
        from safetensors.torch import load_file

        model = self.build()
        model.load_state_dict(load_file(kept.parent / f"{'ab'[seed % 2]}.safetensors"), strict=False)
        model.tie_weights()
        return model.eval()


def pairs(data: Path) -> dict[str, Callable[..., Pair]]:
    """All pairs by name, each made when it is asked for; the character GPT takes a width."""
    import transformers as hf

    text = lambda as_bytes=False: Text(data / "text" / "tinyshakespeare.txt", as_bytes)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * WIDTH}

    def shared() -> Pair:
        config = json.loads((data / "char-gpt" / "config.json").read_text()) | {"use_cache": False}
        return Stored(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**config)), text().next_ones)

    def gpt(width: int = WIDTH) -> Pair:
        some, still = text(), dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sized = {"vocab_size": some.size, "n_positions": LENGTH, "n_embd": width, "n_head": 4}
        config = hf.GPT2Config(**sized, n_layer=2 + (width > WIDTH), use_cache=False, **still)
        rate, narrow = min(3e-3, 0.384 / width), width > 2 * WIDTH
        return Pair(lambda: Logits(hf.GPT2LMHeadModel(config)), some.next_ones, 1500, rate, narrow)

    def llama() -> Pair:
        some = text(as_bytes=True)
        config = hf.LlamaConfig(vocab_size=some.size, num_key_value_heads=2, use_cache=False, **sizes)
        return Pair(lambda: Logits(hf.LlamaForCausalLM(config)), some.next_ones)

    def bert() -> Pair:
        some, still = text(), {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = hf.BertConfig(vocab_size=some.size + 1, max_position_embeddings=LENGTH, **sizes, **still)
        return Pair(lambda: Logits(hf.BertForMaskedLM(config)), some.masked_ones)

    def vit() -> Pair:
        config = hf.ViTConfig(image_size=32, patch_size=4, num_labels=10, **sizes)
        return Pair(
            lambda: Logits(hf.ViTForImageClassification(config)), Images(data / "cifar10", "pixel_values").pictures
        )

    def t5() -> Pair:
        some = text()
        config = hf.T5Config(
            vocab_size=some.size + 1, d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=2, num_heads=4,
            dropout_rate=0.0, use_cache=False, feed_forward_proj="gated-gelu", decoder_start_token_id=some.size,
        )  # fmt: skip
        return Pair(lambda: Logits(hf.T5ForConditionalGeneration(config)), some.continued)

    def mlp() -> Pair:
        act, wide = nn.ReLU, 512
        build = lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(3072, wide), act(), nn.Linear(wide, wide), act(), nn.Linear(wide, 10)
        )
        return Pair(build, Images(data / "cifar10").pictures, rate=1e-3)

    return {"char-gpt": shared, "gpt": gpt, "llama": llama, "bert": bert, "vit": vit, "t5": t5, "mlp": mlp}
