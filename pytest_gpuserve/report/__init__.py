"""Results as text and as documents: pure functions of what was measured and judged."""
