"""Changes between two checkpoints: the element, tensors paired by what they hold, findings in words."""
