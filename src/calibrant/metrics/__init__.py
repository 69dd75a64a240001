"""Views of Predictions -> one number. A file is a family; the registry finds them by folder."""
