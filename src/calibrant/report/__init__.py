"""Records -> HTML pages, figures and terminal tables; computes no number."""
