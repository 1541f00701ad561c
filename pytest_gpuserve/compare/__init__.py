"""Assertions on loads, and their decisions: by stored baselines, side by side, by limits."""
