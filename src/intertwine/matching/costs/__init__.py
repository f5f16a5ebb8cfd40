"""Cost matrices: inner products of the units of two networks."""
