"""Rules for operations along axes: reductions, normalisations, losses, pooling, regions of images."""
