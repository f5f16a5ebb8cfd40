"""Features that releases before the pinned ones lack: there their tests are skipped, with a reason."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

_PINNED = Path(__file__).parents[2] / "requirements" / "dev.txt"


def is_older(package: str, release: str) -> bool:
    """Whether an installed package is older than a release; False where it is not installed."""
    numbers = lambda text: [int(part) for part in re.findall(r"\d+", text)[:3]]
    try:
        return numbers(version(package)) < numbers(release)
    except PackageNotFoundError:
        return False


def since(package: str, release: str, reason: str) -> pytest.MarkDecorator:
    """Mark that skips a test if a package is older than a release."""
    return pytest.mark.skipif(is_older(package, release), reason=f"{package} {release} is the first in which {reason}")


runs_on_meta = since("transformers", "5.0", "rotary positions run on the meta device")
stacked_experts = since("transformers", "5.0", "experts stand in one tensor")
unscaled_t5 = since("transformers", "5.0", "a T5's outputs do not depend on whether its head is tied")
stores_complex_numbers = since("safetensors", "0.7", "files hold complex numbers")
dtype_name = "torch_dtype" if is_older("transformers", "4.56") else "dtype"  # of an argument of from_pretrained


def lacks(error: AttributeError) -> bool:
    """Whether an error says that transformers, older than the pinned release, has no such class."""
    (pinned,) = re.findall(r"^transformers==(\S+)", _PINNED.read_text(), re.MULTILINE)
    return "module transformers has no attribute" in str(error) and is_older("transformers", pinned)
