"""Many nodes: what ran on each, what is left to run, and what they say together."""
