"""``torch.cuda.nvtx``, for the profiler of any vendor."""

from portagpu.devices.annotations import annotate as range  # noqa: A004 - torch's name
from portagpu.devices.annotations import mark, range_pop, range_push

__all__ = ["mark", "range", "range_pop", "range_push"]
