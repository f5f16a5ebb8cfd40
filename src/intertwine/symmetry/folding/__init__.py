"""Gauge changes that any architecture admits: norms, biases and means, folded along the recorded run."""
