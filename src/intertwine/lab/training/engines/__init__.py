"""Engines of training: how one step of k networks is taken, and which engine fits a network."""
