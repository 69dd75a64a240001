"""Predictions -> findings: audit, trust report, out-of-distribution rows, gates."""
