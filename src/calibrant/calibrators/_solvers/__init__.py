"""Solvers and shared machinery of the calibrators."""
