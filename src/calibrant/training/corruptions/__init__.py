"""Images -> the same images, corrupted, at five severities."""
