"""Number formats, their support on a device, and operations with equal results on all devices.

Importing this package does not import torch. The operations do when they are called.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
