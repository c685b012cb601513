"""Bundles: full bring-ups of real hardware, scrubbed and hashed, for ``matrix/results``.

``docs/results.md`` describes the format. Nothing here needs torch.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
