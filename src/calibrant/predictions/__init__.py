"""Arrays, or a model and a loader -> Predictions: inputs checked once, per-row facts in one pass."""
