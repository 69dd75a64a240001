"""Arrays, or a model and its data -> Predictions: checked once, per-row facts computed in one pass."""
