"""records -> page, figures, table. Computes nothing."""
