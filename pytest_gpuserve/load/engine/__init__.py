"""The engine process: it sends, times and counts, without conclusions."""
