"""A child process with everything that it starts, and when it is up; no pytest, no server.

``child`` starts and ends it through ``keeper``, which outlives us; ``ready`` waits for it; the rest is what they need.
"""
