"""Work of the commands on the symmetry of one network."""
