"""The former place of what tests import."""
