"""``torch.cuda.nvtx``, for the profiler of any vendor."""

from portagpu.functions import annotate as range  # noqa: A004 - torch's name
from portagpu.functions import mark, range_pop, range_push

__all__ = ["mark", "range", "range_pop", "range_push"]
