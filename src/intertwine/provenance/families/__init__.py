"""Families of many checkpoints: sketches, trees, merges, directions."""
