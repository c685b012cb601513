"""Attention, forward and backward, by each of torch's back ends and by the one that torch chooses.

Operations are counted as in FlashAttention-2 (arXiv 2307.08691, section 4.1): 4 s^2 d for each head
forward, half of it under a causal mask, and 2.5 times that backward. Which back end ran is read
from the operators that torch's profiler saw, and one that was asked for and did not run is a FAIL.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision import Support
from portagpu.suites.performance.cases import BenchCase
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice

METRICS: Final = ("attention/forward", "attention/backward")

DEFAULT: Final = "default"
"""No back end is asked for: torch chooses."""
_SEED: Final = 20240307
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SHAPES: Final = {False: (2, 32, 2048, 128), True: (1, 12, 512, 64)}
"""(batch, heads, length, width of a head): of Llama 3 8B, and of GPT-2 where ranks share a CPU."""
_BACKWARD: Final = 2.5
_ROUNDINGS: Final = 16
"""The largest error of a gradient, in units of roundoff of its largest element: those of two
products, the probabilities, their row sums and the output, each a few."""
_NOT_HERE: Final = ("No viable backend", "No available kernel")
"""How torch's errors begin where a back end cannot compute what is asked."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Every back end in every dtype that models use; in a quick run in one dtype."""
    del world, target
    native = [name for name in _DTYPES if device.support.get(name) == Support.NATIVE] or ["fp32"]
    batch, heads, length, width = _SHAPES[device.shared]
    return [
        BenchCase(
            id=f"{metric}[{choice},{dtype}]",
            metric=metric,
            area="attention",
            unit="TFLOPS",
            function="attention",
            arguments={
                "choice": choice,
                "dtype": dtype,
                "backward": metric == "attention/backward",
                "sizes": [batch, heads, length, width],
            },
            shape={"b": batch, "h": heads, "s": length, "d": width, "dtype": dtype},
            counts="4 b h s^2 d operations, half of it under the causal mask; backward 2.5 times",
            checks="the first and the last head against float64, within a bound of rounding",
            does_not_show="other shapes and masks; a back end that computes what the mask hides "
            "does twice what is counted",
        )
        for dtype in (native if effort is Effort.FULL else native[:1])
        for metric in METRICS
        for choice in (DEFAULT, *device.attention)
    ]


def attention(
    rank: Rank, *, effort: str, choice: str, dtype: str, backward: bool, sizes: list[int]
) -> dict[str, Any]:
    """Check one call, read which back end ran, time many, and check again."""
    import torch

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    batch, heads, length, width = sizes
    rank.gpu.set_float32_precision("ieee")
    generator = torch.Generator(rank.gpu.device).manual_seed(_SEED)
    tensors = [
        torch.randn(sizes, generator=generator, device=rank.gpu.device).to(
            getattr(torch, _DTYPES[dtype])
        )
        for _ in range(4)
    ]
    given = [each.requires_grad_(backward) for each in tensors[:3]]
    gradient = tensors[3]
    try:
        with chosen(choice):
            ran, output = run_and_see(given)
            result = differentiate(output, given, gradient) if backward else [output]
    except RuntimeError as error:
        if not str(error).startswith(_NOT_HERE):
            raise
        reading.skip = f"torch has no {choice} attention in {dtype} on {rank.gpu.device}"
        return reading.to_json()
    reading.notes = {"seed": _SEED, "asked": choice, "ran": ran}
    if choice not in (DEFAULT, ran):
        reading.refuse(f"{choice} was asked for, and {ran} ran")
    reading.reject(first_wrong(given, gradient, result, backward))
    if reading.wrong:
        return reading.to_json()

    def call() -> None:
        nonlocal result
        result = differentiate(output, given, gradient) if backward else [compute(given)]

    rank.step(f"timing {choice}")
    with chosen(choice):
        timing = measure(stopwatch, call, PACES[Effort(effort)])
    reading.reject(first_wrong(given, gradient, result, backward))
    operations = 4 * batch * heads * length**2 * width / 2 * (_BACKWARD if backward else 1)
    # q, k, v and the output; backward those again, the gradient of the output and three more
    moved = tensors[0].nbytes * (8 if backward else 4)
    reading.keep(timing, work=operations, flops=operations, moved=moved)
    return reading.to_json()


def chosen(choice: str) -> AbstractContextManager[Any]:
    """Only the back end of that name inside the block."""
    if choice == DEFAULT:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    block: AbstractContextManager[Any] = sdpa_kernel(
        next(each for name, each in SDPBackend.__members__.items() if name_of(name) == choice)
    )
    return block


def name_of(member: str) -> str:
    """ "flash" of "FLASH_ATTENTION", a member of torch's ``SDPBackend``."""
    return member.lower().removesuffix("_attention")


def compute(given: list[torch.Tensor]) -> torch.Tensor:
    """The call that is timed forward."""
    from torch.nn import functional

    return functional.scaled_dot_product_attention(*given, is_causal=True)


def differentiate(
    output: torch.Tensor, given: list[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    """The call that is timed backward: the gradients of queries, keys and values."""
    import torch

    return list(torch.autograd.grad(output, given, gradient, retain_graph=True))


def run_and_see(given: list[torch.Tensor]) -> tuple[str, torch.Tensor]:
    """(the back end that ran, the output), from the operators of one call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        output = compute(given)
    return back_end_of([event.key for event in seen.key_averages()]), output


def back_end_of(operators: list[str]) -> str:
    """The back end whose operator is among ``operators`` ("aten::_scaled_dot_product_...").

    ATen names them _scaled_dot_product_<back end>_attention, with two exceptions.
    """
    for operator in operators:
        name = operator.partition("::_scaled_dot_product_")[2]
        if not name or name.endswith("_backward"):
            continue
        if name.startswith("attention_math"):
            return "math"
        if "overrideable" in name:
            return "overrideable"
        return name.partition("_attention")[0]
    return "none of torch's"


def first_wrong(
    given: list[torch.Tensor],
    gradient: torch.Tensor,
    found: list[torch.Tensor],
    backward: bool,
) -> str:
    """A sentence about the first head that is wrong; empty if the first and the last are right."""
    for place in ((0, 0), (-1, -1)):
        q, k, v, do = (each[place].detach().double().cpu() for each in (*given, gradient))
        here = [each[place].detach().double().cpu() for each in found]
        right, allowed = _exact(q, k, v, do, backward, found[0].dtype)
        for name, one, other, bound in zip(
            ("dq", "dk", "dv") if backward else ("output",), here, right, allowed, strict=True
        ):
            # not "above the bound": NaN is wrong too
            if not bool(((one - other).abs() <= bound).all()):
                worst = int(((one - other).abs() - bound).nan_to_num(float("inf")).argmax())
                row, column = divmod(worst, other.shape[1])
                return (
                    f"{name} of head {place[1]} is wrong in row {row}, column {column}: "
                    f"{float(one[row, column]):.6g} instead of {float(other[row, column]):.6g}"
                )
    return ""


def _exact(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    backward: bool,
    dtype: torch.dtype,
) -> tuple[list[torch.Tensor], list[Any]]:
    """(the right tensors in float64, the largest error of their elements).

    A score that is off by t changes its probability by the factor exp(2 t): scores are rounded to
    ``dtype``, and accumulated in float32 with the exponential's own error (20 units in torch's
    vectorised one). Probabilities and output are rounded to ``dtype``.
    """
    import torch

    half, single = torch.finfo(dtype).eps / 2, 2.0**-24
    scale = q.shape[-1] ** -0.5
    hidden = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).triu(1)
    scores = (q @ k.T * scale).masked_fill(hidden, float("-inf"))
    p = scores.softmax(-1)
    output = p @ v
    if not backward:
        most = (q.abs() @ k.abs().T * scale).masked_fill(hidden, 0).amax(-1, keepdim=True)
        off = half * scores.amax(-1, keepdim=True).abs() + (q.shape[-1] + 32) * single * (1 + most)
        error = 2 * (off + half) + (k.shape[0] + 32) * single
        return [output], [error * (p @ v.abs()) + 2 * half * output.abs()]
    dp = do @ v.T
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    right = [ds @ k * scale, ds.T @ q * scale, p.T @ do]
    return right, [_ROUNDINGS * half * each.abs().max() for each in right]
