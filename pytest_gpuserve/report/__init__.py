"""Results as text and as documents: pure functions of measurements and judgements."""
