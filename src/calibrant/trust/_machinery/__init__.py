"""Shared parts of the trust predictors."""
