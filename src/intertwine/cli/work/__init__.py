"""What the commands do; each is loaded when its command runs."""
