"""Outputs of a command: files that are written, results as text or JSON, tables on the screen."""
