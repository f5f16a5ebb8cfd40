"""Kernels of examples for centred kernel alignment."""
