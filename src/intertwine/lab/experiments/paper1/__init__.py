"""Tables and figures of paper 1, numbered as in its second version."""
