"""Adapters for scikit-learn, Lightning and transformers, each importing its library only when used."""
