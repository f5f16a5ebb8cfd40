"""Work of the commands; each file is loaded when its command runs."""
