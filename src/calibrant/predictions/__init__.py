"""The door of every fit, and of every call of what was fitted: logits, labels and features, checked once."""
