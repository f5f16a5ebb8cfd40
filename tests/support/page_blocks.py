"""All blocks of a page, at any depth."""


def every_block(blocks):
    """Blocks, and those within them."""
    for block in blocks:
        yield block
        for inner in (getattr(block, "blocks", ()), *getattr(block, "tabs", {}).values()):
            yield from every_block(inner)


def figures(page):
    return [block for block in every_block(page.blocks) if block.kind == "figure"]
