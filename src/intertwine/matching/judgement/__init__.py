"""Judgement of two aligned networks: distances, chance levels, tensors that may be unchanged, and the verdict."""
