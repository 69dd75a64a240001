"""Logits, features or inputs -> a confidence that the prediction is right, learned or not."""
