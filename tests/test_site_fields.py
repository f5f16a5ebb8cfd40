"""Fields in the site's reference are described by the comments beside and above them."""

from pathlib import Path

import pytest

FILE = '''
class Thing:
    """A thing."""

    size: int  # Its size, in pixels
    # Names of its parts,
    # the first one first
    parts: tuple[str, ...] = ()
    kind: str  # type: ignore[misc]
    said: str  # Not this
    """This."""
    plain: int
'''


def test_comments_are_the_words_of_fields(tmp_path):
    griffe = pytest.importorskip("griffe", reason="needs the extra [docs]")
    (tmp_path / "thing.py").write_text(FILE)
    extension = Path(__file__).parent.parent / "docs" / "site" / "fields.py"
    loaded = griffe.load("thing", search_paths=[tmp_path], extensions=griffe.load_extensions(str(extension)))
    found = {name: one.docstring and one.docstring.value for name, one in loaded["Thing"].members.items()}
    assert found == {
        "size": "Its size, in pixels.", "parts": "Names of its parts, the first one first.", "kind": None,
        "said": "This.", "plain": None,
    }  # fmt: skip
