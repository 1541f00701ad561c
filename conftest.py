"""Loads the plugin from a bare checkout, and pytester for the plugin's own tests."""

pytest_plugins = ["pytest_gpuserve.plugin", "pytester"]
