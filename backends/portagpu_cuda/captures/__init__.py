"""Readers of what NVIDIA's profilers write: see :mod:`portagpu.facts.captures`."""
