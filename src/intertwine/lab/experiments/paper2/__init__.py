"""Tables and statements of paper 2."""
