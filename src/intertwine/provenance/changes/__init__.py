"""Changes between two checkpoints: the group element, tensors paired by content, and findings in words."""
