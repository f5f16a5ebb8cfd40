"""Conversions of names and layouts: tensors matched by content, known orders of rows, descriptions in words."""
