"""Changes between two checkpoints: conversions of layout, the element, and what remains tensor by tensor."""
