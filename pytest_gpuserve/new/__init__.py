"""A start made for the user: a suite for an app, written after the app has answered once."""
