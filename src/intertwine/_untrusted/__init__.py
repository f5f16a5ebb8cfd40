"""Untrusted input: files, names and settings, checked before they cost memory, time or more.

Weights, data, cards, configurations and results may come from anyone. ``SECURITY.md`` says what is promised for them;
the checks that keep the promise are all here.
"""
