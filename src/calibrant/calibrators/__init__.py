"""logits -> logits, fitted on held-out rows."""
