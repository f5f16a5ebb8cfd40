"""Provenance of a result: the command line, networks, data and settings that made it."""

from collections.abc import Collection, Mapping
from typing import Any

from .blocks import Block, Facts, Grid, Heading, Listing

_CARDS = {"network": "Network", "data": "Data", "versions": "Versions"}


def provenance(
    settings: Mapping[str, Any], facts: Mapping[str, Any], shown: Collection[str] = (), extra: Collection[Facts] = ()
) -> list[Block]:
    """The end of a page: ``settings["command"]``, then cards: of networks, data, versions, ``extra``, and the rest.

    Settings are left out where they are ``None`` or the page has ``shown`` them; ``facts`` come before them.
    """
    cards = [Facts(x, str(x.get("name", "Network"))) for x in settings.get("networks", ()) if isinstance(x, Mapping)]
    cards += [
        Facts(settings[key], title)
        for key, title in _CARDS.items()
        if key not in shown and isinstance(settings.get(key), Mapping)
    ]
    placed = {"command", "networks", "notes", *_CARDS, *shown}
    rest = {key: _text(value) for key, value in settings.items() if key not in placed and value not in (None, {}, [])}
    cards += [*extra, Facts({**facts, **rest}, "Settings")]
    command = settings.get("command")
    said = [Listing(f"$ {command}")] if command else []
    return [Heading("How this was made"), *said, Grid(cards, width=320)]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_text(v)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
