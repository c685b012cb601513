"""The checks of the gates: one module each, every one a generator of results over a Context."""
