"""Correspondence: which parameter entries of two programs correspond, whatever their code calls them."""
