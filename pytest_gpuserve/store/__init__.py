"""Baseline files: what is in them, how they are read, checked and written."""
