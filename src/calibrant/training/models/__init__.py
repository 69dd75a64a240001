"""Classifier networks for images and text, each a body that gives features and a linear head."""
