"""Starts of servers under load: one by one, and in pairs side by side."""
