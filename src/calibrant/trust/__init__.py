"""features -> a learned confidence."""
