"""Optimisers and shared parts of the calibrators."""
