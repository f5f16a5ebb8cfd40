"""Judgement on two aligned networks: distances, what chance gives, what can be unchanged, the verdict."""
