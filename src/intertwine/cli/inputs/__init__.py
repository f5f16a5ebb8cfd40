"""Inputs of a command: models of directories, adapters, an example, and data as a model takes it."""
