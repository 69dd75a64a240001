"""(logits, labels) -> one number per batch, added to a loss."""
