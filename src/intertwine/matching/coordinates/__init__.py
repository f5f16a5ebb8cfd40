"""Coordinates in which two networks are compared: without scales, and with orthogonal instead of general bases."""
