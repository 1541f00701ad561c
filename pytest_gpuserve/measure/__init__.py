"""Measurements: latencies, windows, server starts, sessions, and the statistics of them."""
