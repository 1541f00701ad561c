"""Baselines in shared storage: a copy on this machine to read, and writes that replace only what was read."""
