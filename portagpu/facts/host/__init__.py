"""Facts of the machine from kernel files below a replaceable root. No device is opened.

``read_host()`` reads everything once. ``read_clocks``, ``read_temperatures`` and
``read_throttling`` read changing values. ``gpus_on_machine()`` finds GPUs without vendor libraries.
Unknown is None.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
