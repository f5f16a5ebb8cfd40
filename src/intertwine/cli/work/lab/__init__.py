"""Work of the commands that train and reproduce."""
