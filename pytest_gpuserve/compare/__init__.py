"""What is asserted of loads, and how it is decided: by stored baselines, side by side, by limits."""
