"""A child process with everything that it starts, and when it is up; no pytest, no server.

``child`` starts and ends it through ``supervisor``, which outlives this process; ``ready`` waits for it.
"""
