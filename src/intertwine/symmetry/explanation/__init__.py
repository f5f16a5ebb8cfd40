"""The group in words and numbers: the table of its spaces, their titles, its dimension."""
