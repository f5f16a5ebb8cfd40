"""Every class of llm-compressor's registries, and others: the same mappings, or a difference that numbers explain."""

import pytest

pytest.importorskip("transformers", "5.23")

from registry import PAGE, UNLISTED, listed, listed_row, resolved, unlisted_row

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", listed())
def test_a_listed_class_has_its_mappings_or_a_reason(name):
    row = listed_row(name)
    assert "NOT PROVED" not in row and "MISSING HERE" not in row
    assert row in TEXT, "write docs/guide/mappings-registry.md anew: python tests/support/registry.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLISTED)
def test_a_class_that_is_not_listed_has_proved_mappings(name):
    row = unlisted_row(name)
    assert "NOT PROVED" not in row and "->" in row and row in TEXT


def test_patterns_are_grouped_by_layer_as_the_tool_groups_them():
    names = [f"layers.{i}.{part}" for i in range(2) for part in ("norm", "mlp.0.up", "mlp.1.up", "q")]
    assert resolved([["re:.*norm$", ["re:.*up$"]]], names) == {
        (f"layers.{i}.norm", frozenset({f"layers.{i}.mlp.0.up", f"layers.{i}.mlp.1.up"})) for i in range(2)
    }
