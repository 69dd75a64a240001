"""confidence -> accept or abstain, with a guarantee; probabilities -> sets that hold the truth."""
