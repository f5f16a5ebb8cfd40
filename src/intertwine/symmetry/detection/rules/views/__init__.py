"""Rules for operations that view or rearrange entries: shapes, stacks, strides, sequences."""
