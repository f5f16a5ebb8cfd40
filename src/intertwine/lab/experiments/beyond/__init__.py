"""What the papers left open: questions first, then numbers, then statements that may turn out wrong."""
