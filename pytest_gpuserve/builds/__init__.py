"""Builds of the project: the checkout, its base commit, other revisions and interpreters."""
