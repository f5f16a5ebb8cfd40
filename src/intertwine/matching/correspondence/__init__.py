"""Correspondence: which parameter entries of one program are which of another, whatever their code calls them."""
