"""The Temporal Fusion Transformer: its network, its data, and how it is served."""
