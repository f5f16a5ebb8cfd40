"""Consensus of tensors that agree, where others were changed: what they hold in place, and votes by distance."""
