"""Which share of small faults in a room's code its tests find."""
