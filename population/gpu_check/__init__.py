"""`graft doctor --gpu`: what a machine's GPU does with this program, in under eight minutes and without a network.

Every part runs in a process of its own with a deadline: one that crashes or hangs is named, and the rest goes on.
"""
