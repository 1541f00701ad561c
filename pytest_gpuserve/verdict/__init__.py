"""Verdicts from numbers: pure functions without clocks, files, processes or randomness."""
