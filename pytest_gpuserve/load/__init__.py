"""The load generator: what is sent, when, by whom, and what came back."""
