"""A recipe -> a run: logits, history, and a checkpoint to go on from."""
