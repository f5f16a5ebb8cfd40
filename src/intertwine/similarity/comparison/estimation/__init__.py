"""Scores estimated from what one pass over the data keeps."""
