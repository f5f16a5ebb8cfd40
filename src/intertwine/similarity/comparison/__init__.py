"""Comparisons of two networks, layer by layer."""
