"""Screens devices for silent corruption: every result of exact work is judged.

The work is in ``portagpu.train.exact``; ``docs/screen.md`` explains what a verdict means. Importing
this package does not import torch.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
