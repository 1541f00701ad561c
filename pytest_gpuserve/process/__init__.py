"""A child process with all its descendants, and its readiness; without pytest and servers.

``child`` starts and ends it through ``supervisor``, which outlives this process; ``ready`` waits for it.
"""
