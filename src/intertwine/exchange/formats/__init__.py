"""Formats of other tools, one file for each."""
