"""Calibrant inside other libraries, one module each; a module is imported by name, and only it imports its library."""
