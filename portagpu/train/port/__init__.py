"""Finds what ties a training script to one vendor, and rewrites what can be decided.

One analysis serves both verbs: ``lint`` reports every use, and ``rewrite`` replaces those whose
meaning stays the same on the GPU that the script was written for. What a use is called, why it
breaks and what to write instead is data of the vendors: ``tables/port.toml`` of their packages. No
module here imports torch or runs a script, except ``bridge``, which runs one unchanged.
"""
