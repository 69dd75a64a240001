"""Standard files -> images or tokens with labels."""
