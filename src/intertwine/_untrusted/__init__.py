"""Input from others: files, names and settings, checked before they cost memory, time or more.

Weights, data, cards, configurations and results may come from anyone. What is promised for them is in ``SECURITY.md``;
everything that keeps the promise is asked here.
"""
