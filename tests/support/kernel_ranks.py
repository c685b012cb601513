"""Ranks that measure portable kernels in Triton's interpreter, whose times say nothing.

The server of these ranks has TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any

from portagpu.devices.contract import Capability
from portagpu.suites.performance import timing
from portagpu.suites.performance.cases import load_area
from portagpu.train import kernels

FEW = timing.Pace(warmup_s=0.0, sample_s=0.0, point_s=0.0, least=5, most=5, timeout_s=60.0)
"""Five samples of as few calls as the clock takes."""


def import_kernels() -> None:
    """What each rank would import in seconds."""
    for name in ("torch._dynamo", "triton.language"):
        importlib.import_module(name)


def compared(
    rank: Any,
    kernel: str,
    dtype: str,
    fault: str = "none",
    rows: int = 8,
    columns: int = 20,
    few: bool = True,
) -> list[dict[str, Any]]:
    """What a kernel next to torch's operator and next to a copy gives, with that fault or "none".

    With ``few`` samples, or with as many as ``--quick`` takes.
    """
    if few:
        timing.PACES[timing.Effort.QUICK] = FEW
    if fault != "none":
        FAULTS[fault](rank, kernel)
    others = ("torch", "copy") if kernel != "matmul" else ("torch",)
    sizes = {"rows": rows, "columns": columns}
    found = []
    for other in others:
        given = {"kernel": kernel, "other": other, "dtype": dtype, **sizes}
        found.append(load_area("kernels").compare(rank, effort="quick", **given))
        if fault == "graphs":
            found[-1]["notes"] |= {"captures": Graph.captures, "replays": Graph.replays}
    return found


def wrong(rank: Any, kernel: str) -> None:
    right: Any = getattr(kernels, kernel)

    def broken(*given: Any, **options: Any) -> Any:
        found = right(*given, **options)
        found.reshape(-1)[-1:].add_(1.0)
        return found

    setattr(kernels, kernel, broken)


def rate(rank: Any, kernel: str) -> None:
    right: Any = kernels.adamw_step

    def step(*given: Any, lr: float, **more: Any) -> None:
        right(*given, lr=lr * 1.01, **more)

    kernels.adamw_step = step


def unfused(rank: Any, kernel: str) -> None:
    adam: Any = importlib.import_module("torch.optim.adam")

    def refuse(parameter: Any) -> None:
        raise RuntimeError("`fused=True` requires another device")

    adam._device_dtype_check_for_fused = refuse


class Graph:
    """It replays nothing: the result is that of the capture."""

    replays = captures = 0

    def replay(self) -> None:
        Graph.replays += 1
        # longer than the clock's resolution
        sum(range(2000))


def graphs(rank: Any, kernel: str) -> None:
    class Graphs(type(rank.gpu)):  # type: ignore[misc]
        __slots__ = ()

        def Graph(self) -> Graph:  # noqa: N802 - as the contract has it
            return Graph()

        @contextmanager
        def graph(self, graph: Graph) -> Any:
            Graph.captures += 1
            yield graph

    rank.gpu.__class__ = Graphs
    rank.gpu.capabilities |= {Capability.GRAPHS}


FAULTS = {"wrong": wrong, "rate": rate, "unfused": unfused, "graphs": graphs}


def operator(rank: Any, name: str, is_wrong: bool) -> dict[str, Any]:
    """What a portable kernel among torch's operators gives, or one that computes wrong."""
    timing.PACES[timing.Effort.QUICK] = FEW
    area: Any = load_area("operators")
    if is_wrong:
        normalise, make = area.normalise, area.make

        def make_faster(*given: Any) -> Any:
            found = make(*given)
            found.keywords["lr"] *= 1.01
            return found

        area.normalise = lambda *given: normalise(*given[:3], given[3] * 1.01)
        area.make = make_faster
    sizes = {"elements": 5} if name == "adamw" else {"rows": 8, "columns": 20}
    measured = area.step if name == "adamw" else area.norm
    found: dict[str, Any] = measured(rank, effort="quick", name=name, form="portable", **sizes)
    return found
