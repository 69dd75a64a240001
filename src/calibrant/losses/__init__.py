"""(logits, labels) -> one value per row; Criterion reduces."""
