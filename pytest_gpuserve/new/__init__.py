"""Scaffold of a suite for an app, written after the app has answered once."""
