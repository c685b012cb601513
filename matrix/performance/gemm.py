"""Matrix products in each dtype: 2 M N K operations a call, in TFLOPS (TOPS for integers)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision import Support
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase, usual_layout
from portagpu.suites.performance.device import DTYPES
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.matmul import Product
    from portagpu.suites.performance.timing import Stopwatch

METRICS: Final = tuple(f"gemm/{dtype}" for dtype in DTYPES)

_SEED: Final = 20240229
_REASONS: Final = {
    Support.STORAGE: "keeps and converts {dtype} but has no instructions that multiply it",
    Support.NONE: "has no {dtype}",
}


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a transformer whose products are measured; ``tokens`` are those of a batch."""

    name: str
    tokens: int
    width: int
    heads_width: int
    """Rows of queries, keys and values together."""
    inner: int
    vocabulary: int

    def products(self) -> dict[str, tuple[int, int, int]]:
        """(m, n, k) of a layer's forward products, and of the logits, by name."""
        return {
            "qkv": (self.tokens, self.heads_width, self.width),
            "attention out": (self.tokens, self.width, self.width),
            "mlp up": (self.tokens, self.inner, self.width),
            "mlp down": (self.tokens, self.width, self.inner),
            "logits": (self.tokens, self.vocabulary, self.width),
        }


_LARGE: Final = Model("Llama 3 8B", 4096, 4096, 4096 + 2 * 1024, 14336, 128256)
"""arXiv 2407.21783, table 3: 32 heads of 128, 8 of them of keys and of values; 128,256 tokens are
those of the released model."""
_SMALL: Final = Model("GPT-2", 512, 768, 3 * 768, 3072, 50304)
"""The 124M model: Radford et al., Language Models are Unsupervised Multitask Learners (2019), its
vocabulary of 50,257 padded to a multiple of 64."""
_DECODED: Final = 16
_NARROW: Final = 64
_FURTHER: Final = ("fp32", "bf16", "fp16", "fp8")
"""Dtypes that models are trained in."""
_BY_16: Final = frozenset({"fp8", "int8"})
"""torch multiplies these only where every edge is a multiple of 16."""
_EDGES: Final = {
    "gpu": (4096, 6144, 8192, 12288, 16384),
    "cpu": (512, 1024, 1536, 2048, 3072),
    "slow": (128, 256, 512),
}
_MAX_COPIES: Final = 64


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """A square of each dtype, a transformer's products, skinny and unaligned ones, every product
    that the target has an expectation for; with full effort a search for the fastest square."""
    del world
    found: list[BenchCase] = []
    for dtype in DTYPES:
        support = Support(device.support.get(dtype, Support.NONE))
        edge = _edge(device, dtype, support)
        usual = usual_layout(dtype)
        roles = {((edge, edge, edge), usual): ""}
        if dtype in _further(device, effort):
            roles |= {(each, usual): role for role, each in _further_shapes(device, dtype, edge)}
        for each in target.expectations(f"gemm/{dtype}") if target is not None else ():
            if (shape := _shape(each.shape)) is not None:
                roles.setdefault((shape, each.contiguous or usual), "")
        found.extend(
            _case(device, dtype, support, *product, role) for product, role in roles.items()
        )
        if effort is Effort.FULL:
            found.append(_search_case(device, dtype, support))
    return found


def _further(device: MeasuredDevice, effort: Effort) -> list[str]:
    """The dtypes of the further shapes: those that the device computes in; one in a quick run."""
    native = [dtype for dtype in _FURTHER if device.support.get(dtype) == Support.NATIVE]
    return native if effort is Effort.FULL else [d for d in native if d == "bf16"] or native[:1]


def _further_shapes(
    device: MeasuredDevice, dtype: str, edge: int
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    model = _SMALL if device.shared else _LARGE
    for role, shape in model.products().items():
        yield f"{role} of {model.name}, {model.tokens} tokens", shape
    if dtype in _BY_16:
        return
    decoded = (_DECODED, model.inner, model.width)
    yield f"skinny: mlp up of {_DECODED} tokens, weights from memory", decoded
    yield "skinny: few columns", (model.tokens, _NARROW, model.width)
    yield "unaligned: no edge is a multiple of 2", (edge + 1, edge + 1, edge + 1)


def _case(
    device: MeasuredDevice,
    dtype: str,
    support: Support,
    shape: tuple[int, int, int],
    contiguous: str,
    role: str,
) -> BenchCase:
    m, n, k = shape
    cold = m == _DECODED and device.cache_bytes is not None
    name = f"{m}" if m == n == k else f"{m}x{n}x{k}"
    if contiguous != usual_layout(dtype):
        name += f",{contiguous}"
    arguments = {"dtype": dtype, "m": m, "n": n, "k": k, "contiguous": contiguous}
    if role:
        arguments |= {"role": role, "beyond_bytes": 2 * (device.cache_bytes or 0) if cold else 0}
    limits = [
        "" if cold else "operands that fit a cache stay there between calls",
        "the arithmetic is emulated by other instructions" if support is Support.EMULATED else "",
    ]
    return BenchCase(
        id=f"gemm/{dtype}[{name}]",
        arguments=arguments,
        shape={"m": m, "n": n, "k": k, "dtype": dtype, "contiguous": contiguous},
        does_not_show="; ".join(limit for limit in limits if limit),
        function="gemm",
        further=bool(role),
        **_shared_fields(device, dtype, support),
    )


def _search_case(device: MeasuredDevice, dtype: str, support: Support) -> BenchCase:
    slow = support is Support.EMULATED or dtype in _BY_16
    kind = "gpu" if not device.shared else "slow" if slow else "cpu"
    return BenchCase(
        id=f"gemm/{dtype}[max]",
        function="search",
        arguments={"dtype": dtype, "edges": _EDGES[kind]},
        shape="the fastest square",
        does_not_show="other squares, and shapes that are none",
        time_factor=len(_EDGES[kind]),
        further=True,
        **_shared_fields(device, dtype, support),
    )


def _shared_fields(device: MeasuredDevice, dtype: str, support: Support) -> dict[str, Any]:
    absent = None
    if support in _REASONS:
        reason = _REASONS[support].format(dtype=dtype)
        absent = Absent(Verdict.SKIP, f"the {device.backend or device.name} device {reason}")
    return {
        "metric": f"gemm/{dtype}",
        "area": "gemm",
        "unit": "TOPS" if dtype.startswith("int") else "TFLOPS",
        "algorithm": "dense",
        "dtype": dtype,
        "counts": "2 M N K operations",
        "checks": "every element of an exact product of the same shape; of the timed one sampled "
        "rows and columns against float64, within the bound of rounding",
        "absent": absent,
    }


def _edge(device: MeasuredDevice, dtype: str, support: Support) -> int:
    """The edge of the square: large enough for the device, small enough for a slow path."""
    if not device.shared:
        wide = dtype in ("fp64", "fp32") or support is Support.EMULATED
        return 4096 if wide else 8192
    # torch has no fast path for these on a CPU without instructions for them
    slow = support is Support.EMULATED or dtype in _BY_16
    return 256 if slow else 1024


def _shape(text: str | None) -> tuple[int, int, int] | None:
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def gemm(
    rank: Rank,
    *,
    effort: str,
    dtype: str,
    m: int,
    n: int,
    k: int,
    contiguous: str,
    role: str = "",
    beyond_bytes: int = 0,
) -> dict[str, Any]:
    """Check an exact product and one of random operands, time many of these, and check again.

    With ``beyond_bytes`` calls take turns among as many copies of the operands, so that each finds
    its own in memory and not in a cache.
    """
    from portagpu.suites.performance import matmul
    from portagpu.suites.performance.timing import RankSamples, Stopwatch

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    operands = matmul.operands_in_words(rank.gpu, dtype)
    reading.notes = {"seed": _SEED, "operands": operands, **({"role": role} if role else {})}
    work = matmul.product(rank.gpu, dtype, m, n, k, _SEED, contiguous)
    copies = min(max(1, -(-beyond_bytes // work.moved_bytes)), _MAX_COPIES)
    works = [work, *(_copy_of(work) for _ in range(copies - 1))]
    if beyond_bytes:
        reading.notes["operand_copies"] = copies
    exact = matmul.judged_product(rank.gpu, dtype, m, n, k, _SEED, contiguous)
    reading.notes["judged"] = matmul.judged_in_words(exact)
    seconds = _timed(rank, stopwatch, reading, works, exact, effort)
    if seconds is not None:
        reading.keep(seconds, work=work.operations, flops=work.operations, moved=work.moved_bytes)
    return reading.to_json()


def search(rank: Rank, *, effort: str, dtype: str, edges: list[int]) -> dict[str, Any]:
    """Time the square of each of ``edges`` briefly, and the fastest again: a fastest of several is
    faster by luck too, and the second time it is not chosen."""
    from portagpu.base.stats import summarise
    from portagpu.suites.performance import matmul
    from portagpu.suites.performance.timing import RankSamples, Stopwatch

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    rates: dict[int, float] = {}
    free = rank.gpu.mem_get_info()[0]
    # three matrices of at most 8 bytes an element, and what the check needs
    fitting = [edge for edge in edges if 64 * edge * edge <= free] or edges[:1]
    for edge in fitting:
        work, exact = _pair(rank, dtype, edge)
        timing = _timed(rank, stopwatch, reading, [work], exact, Effort.QUICK)
        if timing is None:
            return reading.to_json()
        rates[edge] = work.operations / summarise(timing.seconds).median
    won = max(rates, key=lambda edge: rates[edge])
    work, exact = _pair(rank, dtype, won)
    timing = _timed(rank, stopwatch, reading, [work], exact, effort)
    reading.notes = {
        "seed": _SEED,
        "operands": matmul.operands_in_words(rank.gpu, dtype),
        "judged": matmul.judged_in_words(exact),
        "won": f"{won}x{won}x{won}",
        "searched_tera_per_s": {str(edge): rate / 1e12 for edge, rate in rates.items()},
    }
    if timing is not None:
        reading.keep(timing, work=work.operations, flops=work.operations, moved=work.moved_bytes)
    return reading.to_json()


def _pair(rank: Rank, dtype: str, edge: int) -> tuple[Product, Product]:
    """The square of random numbers, which is timed, and the exact one."""
    from portagpu.suites.performance import matmul

    made = (matmul.product, matmul.judged_product)
    work, exact = (make(rank.gpu, dtype, edge, edge, edge, _SEED) for make in made)
    return work, exact


def _timed(
    rank: Rank,
    stopwatch: Stopwatch,
    reading: Any,
    works: list[Product],
    exact: Product,
    effort: str,
) -> Any | None:
    """The timing of ``works`` in turn; None where ``exact``, their first or last is wrong."""
    from portagpu.suites.performance import matmul
    from portagpu.suites.performance.timing import PACES, measure

    first = works[0]
    what = f"{first.dtype} {first.m}x{first.n}x{first.k}"
    rank.step(f"checking {what}")

    def check(*last: Product, seed: int) -> None:
        matmul.poison(exact)
        matmul.multiply(exact)
        for each in (exact, *last):
            reading.reject(matmul.verify(each, seed))

    for work in works:
        matmul.poison(work)
        matmul.multiply(work)
    check(first, seed=_SEED)
    if reading.wrong:
        return None
    rank.step(f"timing {what}")
    turns = cycle(works)
    timing = measure(stopwatch, lambda: matmul.multiply(next(turns)), PACES[Effort(effort)])
    check(first, *works[1:][-1:], seed=_SEED + 1)
    return None if reading.wrong else timing


def _copy_of(work: Product) -> Product:
    """The same product of operands that lie elsewhere."""
    import torch

    return replace(work, a=work.a.clone(), b=work.b.clone(), result=torch.empty_like(work.result))
