"""Images in files to tensors: one image, many, or those too large for memory, brought to one size."""
