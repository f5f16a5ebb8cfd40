"""Numerical verification of a symmetry, with negative controls, and what remains to be found."""
