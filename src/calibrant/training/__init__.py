"""A recipe -> a run: models, data sets, corruptions, and a training loop that resumes exactly."""
