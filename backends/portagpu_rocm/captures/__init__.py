"""Readers of what AMD's profilers write: see :mod:`portagpu.facts.captures`."""
