"""Files in and out: read with bounds, written whole or not at all, sealed by a digest."""
