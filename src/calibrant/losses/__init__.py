"""(logits, labels) -> loss per row, and penalties per batch; Criterion combines them."""
