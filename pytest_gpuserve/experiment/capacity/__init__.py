"""The search for a capacity: the highest rate of an open loop at which a server meets an objective.

``planning`` says which rate to try next and for how long, ``probing`` what a try of one showed, ``outcome`` whether
something may be concluded from all of them; these are pure. ``start`` does it with a running server and compares what
that counted with what was sent, and ``rounds`` searches two builds in turns.
"""
