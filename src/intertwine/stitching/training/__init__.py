"""Training of stitching layers: recipes, the loop, what is kept, and the choice of alpha."""
