"""Questions that the papers left open, then numbers, then statements that may turn out wrong."""
