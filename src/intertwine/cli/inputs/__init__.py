"""Inputs of a command: networks by their names, checkpoints, adapters, an example, and data as a model takes it."""
