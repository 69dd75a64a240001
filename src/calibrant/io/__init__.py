"""Reading and writing files: predictions, atomic writes, saved calibrators and trust predictors."""
