"""``torch.cuda.nvtx``, for the profiler of any vendor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from portagpu.devices.annotations import mark, range_pop, range_push

__all__ = ["mark", "range", "range_pop", "range_push"]


@contextmanager
def range(msg: str, *arguments: Any, **options: Any) -> Iterator[None]:  # noqa: A001 - torch's name
    """Mark the block, or the decorated function, as ``msg.format(*arguments, **options)``.

    The profiler gets that text alone, and no device is opened for it, as by torch's own. For labels
    and domains there is :func:`portagpu.annotate`.

    :param msg: the text, or a pattern of :meth:`str.format`.
    :param arguments: what the pattern has by number.
    :param options: what the pattern has by name.
    """
    range_push(msg.format(*arguments, **options))
    try:
        yield
    finally:
        range_pop()
