"""Activations: what they let through, known by proof or measured."""
