"""The performance suite as a library: measures, their judgement, and comparison between ranks.

The measures are in ``matrix/performance``; ``docs/performance.md`` explains them. Importing this
package does not import torch.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
