"""Matrix products in each dtype: 2 M N K operations a call, in TFLOPS (TOPS for integers)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.bench.cases import Absent, BenchCase
from portagpu.bench.device import DTYPES
from portagpu.bench.matmul import usual_layout
from portagpu.precision import Support
from portagpu.results.verdicts import Verdict

if TYPE_CHECKING:
    from portagpu.bench.device import MeasuredDevice
    from portagpu.bench.timing import Effort
    from portagpu.target import Target
    from portagpu.world import Rank

METRICS: Final = tuple(f"gemm/{dtype}" for dtype in DTYPES)

_SEED: Final = 20240229
_REASONS: Final = {
    Support.STORAGE: "keeps and converts {dtype} but has no instructions that multiply it",
    Support.NONE: "has no {dtype}",
}


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """A square product of each dtype, and every product that the target has an expectation for."""
    del effort, world
    found: list[BenchCase] = []
    for dtype in DTYPES:
        support = Support(device.support.get(dtype, Support.NONE))
        edge = _edge(device, dtype, support)
        products = [((edge, edge, edge), usual_layout(dtype))]
        if target is not None:
            products += [
                (shape, each.contiguous or usual_layout(dtype))
                for each in target.expectations(f"gemm/{dtype}")
                if (shape := _shape(each.shape)) is not None
            ]
        found.extend(
            _case(device, dtype, support, shape, contiguous)
            for shape, contiguous in dict.fromkeys(products)
        )
    return found


def _case(
    device: MeasuredDevice,
    dtype: str,
    support: Support,
    shape: tuple[int, int, int],
    contiguous: str,
) -> BenchCase:
    m, n, k = shape
    name = f"{m}" if m == n == k else f"{m}x{n}x{k}"
    if contiguous != usual_layout(dtype):
        name += f",{contiguous}"
    absent = None
    if support in _REASONS:
        reason = _REASONS[support].format(dtype=dtype)
        absent = Absent(Verdict.SKIP, f"the {device.backend or device.name} device {reason}")
    limits = [
        "operands that fit a cache stay there between calls",
        "the arithmetic is emulated by other instructions" if support is Support.EMULATED else "",
    ]
    return BenchCase(
        id=f"gemm/{dtype}[{name}]",
        metric=f"gemm/{dtype}",
        area="gemm",
        unit="TOPS" if dtype.startswith("int") else "TFLOPS",
        function="gemm",
        arguments={"dtype": dtype, "m": m, "n": n, "k": k, "contiguous": contiguous},
        algorithm="dense",
        dtype=dtype,
        shape={"m": m, "n": n, "k": k, "dtype": dtype, "contiguous": contiguous},
        counts="2 M N K operations",
        checks="sampled rows and columns against float64, within the bound of rounding",
        does_not_show="; ".join(limit for limit in limits if limit),
        absent=absent,
    )


def _edge(device: MeasuredDevice, dtype: str, support: Support) -> int:
    """The edge of the square: large enough for the device, small enough for a slow path."""
    if not device.shared:
        wide = dtype in ("fp64", "fp32") or support is Support.EMULATED
        return 4096 if wide else 8192
    # torch has no fast path for these on a CPU without instructions for them
    slow = support is Support.EMULATED or dtype in ("int8", "fp8")
    return 256 if slow else 1024


def _shape(text: str | None) -> tuple[int, int, int] | None:
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def gemm(
    rank: Rank, *, effort: str, dtype: str, m: int, n: int, k: int, contiguous: str
) -> dict[str, Any]:
    """Check one product of the operands, time many, and check the last."""
    from portagpu.bench import matmul
    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import PACES, Effort, Stopwatch, measure

    work = matmul.product(rank.gpu, dtype, m, n, k, _SEED, contiguous)
    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    rank.step(f"checking {dtype} {m}x{n}x{k}")
    matmul.poison(work)
    matmul.multiply(work)
    reading.reject(matmul.verify(work, _SEED))
    if reading.wrong:
        return reading.to_json()
    rank.step(f"timing {dtype} {m}x{n}x{k}")
    timing = measure(stopwatch, lambda: matmul.multiply(work), PACES[Effort(effort)])
    reading.reject(matmul.verify(work, _SEED + 1))
    reading.keep(timing, work=work.operations)
    return reading.to_json()
