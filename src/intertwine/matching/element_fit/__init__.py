"""The element that brings one network closest to another: units matched, then scales and bases fitted."""
