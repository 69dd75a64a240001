"""Confidence -> accept or abstain with a guarantee, and conformal prediction sets."""
