"""Conversions of names and layouts: tensors found by what they hold, in known orders of rows, and said in words."""
