"""Options of the commands that bring networks into one basis and merge them."""
