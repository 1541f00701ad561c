"""The search for a capacity: the highest rate of an open loop at which a server meets a latency objective.

``planning`` says which rate to try next, ``probing`` what a try of one showed; both are pure. ``start`` does it with a
running server, ``rounds`` with two builds by turns.
"""
