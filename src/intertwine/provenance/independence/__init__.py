"""Tests of independence: in place, where the null is exact, and after matching."""
