"""Robust matching of networks of which some tensors were changed: reweighting by distance, stabilisers, signs."""
