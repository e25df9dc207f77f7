"""Experiment trackers as exporters: they are shown what the store holds, and the run never waits for them."""
