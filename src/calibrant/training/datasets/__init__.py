"""Standard data sets, read from their published files: images or tokens, with labels."""
