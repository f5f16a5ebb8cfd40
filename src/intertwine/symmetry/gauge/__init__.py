"""Gauge fixing: balanced and canonical forms, fingerprints, and folding of normalisation layers."""
