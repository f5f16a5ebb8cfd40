"""One training loop, the papers' recipes, and checkpoints with a card."""
