"""Structured pruning: channels taken out of every tensor that carries them, and of the configuration."""
