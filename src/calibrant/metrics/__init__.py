"""Predictions -> numbers and curves, with intervals, noise floors and paired comparisons."""
