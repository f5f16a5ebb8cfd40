"""Similarity measures, one class each."""
