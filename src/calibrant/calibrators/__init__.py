"""Logits -> calibrated logits: post-hoc methods, fitted on held-out rows, compared and exported."""
