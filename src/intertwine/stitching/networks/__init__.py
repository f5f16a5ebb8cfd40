"""Stitched networks: two networks, cut at a tap of both and joined by a layer."""
