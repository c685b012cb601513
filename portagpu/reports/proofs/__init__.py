"""The hardware matrix: what was shown of each target, and running what this machine can.

``docs/matrix.md`` explains it. Nothing here needs torch.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
