"""A script that uses the package's objects as types and as decorators, for ``mypy --strict``.

Where an error is ignored there must be one.
"""

from __future__ import annotations

import torch

import portagpu as pg


class Timer:
    def __init__(self, stream: pg.Stream | None = None) -> None:
        self.start: pg.Event = pg.Event(enable_timing=True)
        self.end = pg.Event(True, blocking=False)
        self.stream = stream or pg.current_stream()
        self.gpu: pg.Backend = pg.backend()

    def milliseconds(self) -> float:
        self.start.record(self.stream)
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end)


@pg.annotate("step")
def step(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    with pg.annotate("inner"), pg.device_index(0):
        return x * times


class Twice(torch.autograd.Function):
    @staticmethod
    @pg.custom_fwd
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    @pg.amp.custom_fwd(cast_inputs=torch.float32)
    def other(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x


def graph_of(side: pg.Stream) -> pg.Graph:
    graph: pg.Graph = pg.Graph()
    with pg.graph(graph, stream=side):
        pass
    graph.replay()
    return graph


def kinds(one: object) -> str:
    if isinstance(one, pg.Event):
        return str(one.query())
    if isinstance(one, pg.Stream):
        one.wait_stream(pg.Stream(priority=-1))
        return "stream"
    return "neither"


gpu = pg.backend()
streams: list[pg.Stream] = [gpu.Stream(), gpu.current_stream(), pg.default_stream()]
event: pg.Event = gpu.Event(enable_timing=True)
y: torch.Tensor = step(torch.ones(2), times=2)
number: int = pg.current_device() + 1


def wrong() -> None:
    """Ignored errors that are none are errors themselves (``warn_unused_ignores``)."""
    bad: str = event.elapsed_time(event)  # type: ignore[assignment]
    print(bad, step("x", times=2))  # type: ignore[arg-type]
