"""Affine changes of hidden values, carried through a recorded run into the weights that read them."""
