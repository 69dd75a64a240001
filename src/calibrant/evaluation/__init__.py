"""Predictions -> findings: audit, trust report, out-of-distribution detection, CI gates."""
