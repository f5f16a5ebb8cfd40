"""Text as blocks of tokens, by the tokenizer of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._memory import check_fits
from ..._untrusted.files import regular_file
from ...errors import DataError, MissingExtraError
from .splits import DataSplits, Split, make_splits, without_labels

_FILE = "tokenizer.json"
_COST = 200  # bytes for each byte of text while it is read
_SHORTEST = 2
_PLAIN = ("bytes", "chars")


@dataclass(frozen=True)
class TextBlocks:
    """Blocks of equal length that a text is cut into, with the special tokens that the tokenizer puts around each.

    Raises:
        DataError: If there is no such file, or it is damaged.
    """

    # A ``tokenizer.json``, which is read as data, or a directory of transformers that holds one; ``"bytes"`` for the
    # bytes of UTF-8, ``"chars"`` for the places of characters among those of the whole text
    tokenizer: Path | str
    max_length: int = 128  # Tokens of each block; the last block, which is shorter, is left out
    next_token: bool = True  # Whether the label of each token is the one after it; without, there are no labels

    def __post_init__(self) -> None:
        if self.max_length < _SHORTEST:
            raise DataError(f"max_length must be at least {_SHORTEST}. Got {self.max_length}.")

    def __call__(self, text: str, name: str, letters: str = "") -> Tensor:
        """Tokens ``(N, T)``, or ``(N, T + 1)`` where the next ones are labels; ``"chars"`` numbers ``letters``."""
        check_fits(_COST * len(text), name, f"{len(text):,} characters", "Take a part of it.", error=DataError)
        length = self.max_length + self.next_token
        if self.tokenizer in _PLAIN:
            number = {letter: k for k, letter in enumerate(sorted(set(letters or text)))}
            ids = list(text.encode()) if self.tokenizer == "bytes" else [number[letter] for letter in text]
            whole = [ids[k : k + length] for k in range(0, len(ids) - length + 1, length)]
        else:
            tokenizer = self._opened()
            tokenizer.no_padding()
            tokenizer.enable_truncation(length)
            first = tokenizer.encode(text)
            whole = [block.ids for block in (first, *first.overflowing) if len(block.ids) == length]
        if not whole:
            raise DataError(
                f"text must hold at least one block of {length} tokens. Got fewer in {name}. Say a "
                "smaller --max-length."
            )
        return torch.tensor(whole, dtype=torch.int64)

    def _opened(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("tokenizers", "hf") from None
        place = Path(self.tokenizer)
        file = place / _FILE if place.is_dir() else place
        if not file.is_file():
            raise DataError(
                f"text must be read with a model's tokenizer. Got no {_FILE} in {str(place)!r}. Save it there with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(DIR), or say --tokenizer bytes, chars or PATH."
            )
        file = regular_file(file, _FILE, DataError)
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the reader raises nothing narrower
            raise DataError(f"{_FILE} must be one of the tokenizers library. Got {str(file)!r} ({error}).") from None


def load_text(path: str | Path, blocks: TextBlocks) -> DataSplits:
    """Load a text file in UTF-8 as blocks of tokens.

    Raises:
        DataError: If it is missing, no text, or shorter than one block, or nothing says how to cut it.
    """
    if not isinstance(blocks, TextBlocks):
        raise DataError(
            f"text must be read with a model's tokenizer. Got none for {str(path)!r}. Give checkpoints of transformers "
            "(hf:DIRECTORY) with a tokenizer.json beside the weights, or --model hf:DIRECTORY."
        )
    file = regular_file(path, "text", DataError)
    size = file.stat().st_size
    check_fits(_COST * size, "text", f"{size:,} bytes", "Take a part of it.", error=DataError)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"text must be in UTF-8. Got {str(file)!r} ({error}).") from None
    return split_texts({"train": text}, blocks, f"text:{file.name}")


def split_texts(texts: Mapping[str, str], blocks: TextBlocks, name: str) -> DataSplits:
    """Data from the texts of its splits; what is missing is held out from ``train``."""
    tokens = {key: blocks(text, name, "".join(texts.values())) for key, text in texts.items()}
    count = sum(map(len, tokens.values()))
    said = (f"{name}: {count:,} blocks of {blocks.max_length} tokens; what is left after the last is not used.",)
    if not blocks.next_token:
        return without_labels(name, torch.cat(list(tokens.values())), said)
    splits = {key: Split(t[:, :-1], t[:, 1:]) for key, t in tokens.items()}
    return replace(make_splits(name, splits["train"], splits.get("validation"), splits.get("test")), notes=said)
