"""A small transformer's training step, what ``torch.compile`` gains, and data on its way to it.

The step is forward, backward and AdamW over one batch of random tokens. Model FLOPS utilisation is
that of PaLM (arXiv 2204.02311, appendix B): 6 N + 12 L d s operations a token, N the weights that
are multiplied (the output's, not the embeddings'), L layers of width d over s tokens. What the mask
hides is counted.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision import Support
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice

METRICS: Final = ("training/step", "training/compile", "training/loading")

DTYPES: Final = ("fp32", "bf16", "fp8")
_SEED: Final = 20240309
_CHECKED_TOKENS: Final = 64
_ALLOWED: Final = {"fp32": 1e-3, "bf16": 0.1, "fp8": 0.3}
"""The largest relative error, in the Frobenius norm, of a parameter's gradient: 10^4 and 25 units
of roundoff of 24 and 8 bits. In fp8 a product rounds a gradient to 3 bits and the other operand to
4: errors of u / sqrt(3) each, 0.08 together. 0.3 is 14 such errors on one way, if none depends on
another. A term that is left out changes a gradient by more."""
_SLOW: Final = "compiling takes up to minutes: measured with --level full"


@dataclass(frozen=True, slots=True)
class Sizes:
    """A decoder-only transformer, and the batch that it is trained on."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch * self.length

    @property
    def flops_per_token(self) -> int:
        """6 N + 12 L d s; N: 12 d^2 for each layer, and d for each word of the output."""
        multiplied = 12 * self.width**2 * self.layers + self.width * self.vocabulary
        return 6 * multiplied + 12 * self.layers * self.width * self.length


_LARGE: Final = Sizes(12, 768, 12, 50304, 1024, 8)
"""GPT-2 124M (Radford et al., 2019), the vocabulary padded to a multiple of 64."""
_SMALL: Final = Sizes(2, 256, 4, 2048, 128, 4)


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """The step in each dtype, the gain of the compiler (full effort), and loading."""
    del world, target
    sizes = _SMALL if device.shared else _LARGE
    brief = device.shared and effort is Effort.QUICK
    found = [
        _step_case(device, sizes, "step", dtype) for dtype in (DTYPES[:1] if brief else DTYPES)
    ]
    compiling = _step_case(device, sizes, "compile", "fp32")
    if effort is Effort.QUICK and compiling.absent is None:
        compiling = replace(compiling, absent=Absent(Verdict.SKIP, _SLOW))
    found.append(compiling)
    found += [
        BenchCase(
            id=f"training/loading[{where}]",
            metric="training/loading",
            area="training",
            unit="GB/s",
            function="loading",
            arguments={"workers": workers},
            shape={"bytes": _BATCHES * _BATCH_BYTES},
            counts="the bytes of the batches on the device, from a DataLoader over host memory",
            checks="the sum of every batch of an epoch",
            does_not_show="decoding, augmentation, or a disk",
        )
        for where, workers in (("main", 0), ("workers", 2))
        if workers == 0 or effort is Effort.FULL
    ]
    return found


_BATCHES: Final = 16
_BATCH_BYTES: Final = 2 << 20


def _step_case(device: MeasuredDevice, sizes: Sizes, what: str, dtype: str) -> BenchCase:
    support = Support(device.support.get(dtype, Support.NONE))
    absent = None
    if support is not Support.NATIVE:
        reason = f"{device.name} computes in no {dtype} of its own"
        absent = Absent(Verdict.SKIP, reason)
    step = what == "step"
    return BenchCase(
        id=f"training/{what}[{dtype}]",
        metric=f"training/{what}",
        area="training",
        unit="tokens/s" if step else "ratio",
        function=what if step else "compiled",
        arguments={"dtype": dtype, "sizes": asdict(sizes)},
        shape={**asdict(sizes), "dtype": dtype},
        counts="tokens of a step of forward, backward and AdamW"
        if step
        else "the time of a step over that of the compiled one, in turns",
        checks=f"the loss and every gradient over {_CHECKED_TOKENS} tokens against float64; that "
        "the loss falls",
        does_not_show="several devices, a large model, or how well it learns",
        absent=absent,
        time_factor=2.0 if step else 5.0,
    )


def make_model(sizes: Sizes) -> nn.Module:
    """The transformer on the CPU in float32, from torch's present random state."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = sizes.width
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, width = x.shape
            heads = self.qkv(self.first(x)).view(batch, length, 3, sizes.heads, -1)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            grown: torch.Tensor = self.down(functional.gelu(self.up(self.second(x))))
            return x + grown

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(sizes.vocabulary, sizes.width)
            self.places = nn.Embedding(sizes.length, sizes.width)
            self.blocks = nn.ModuleList(Block() for _ in range(sizes.layers))
            self.last = nn.LayerNorm(sizes.width)
            self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

        def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
            x = self.words(words) + self.places.weight[: words.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.output(self.last(x))
            return functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())

    return Decoder()


@dataclass(slots=True)
class Training:
    """A model on a device with its optimiser and its one batch."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    words: torch.Tensor
    following: torch.Tensor
    block: Callable[[], AbstractContextManager[Any]]
    loss: torch.Tensor | None = None

    @classmethod
    def start(cls, rank: Rank, sizes: Sizes, dtype: str) -> Training:
        """Seeded weights and tokens."""
        import torch

        from portagpu.suites.performance.matmul import use_fp8

        torch.manual_seed(_SEED)
        model = make_model(sizes).to(rank.gpu.device)
        if dtype == "fp8":
            use_fp8(model, rank.gpu.precision.fp8)  # type: ignore[arg-type]
        kind = rank.gpu.device.type
        rank.gpu.set_float32_precision("ieee")
        generator = torch.Generator().manual_seed(_SEED)
        tokens = torch.randint(
            0, sizes.vocabulary, (sizes.batch, sizes.length + 1), generator=generator
        ).to(rank.gpu.device)
        return cls(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-3),
            tokens[:, :-1].contiguous(),
            tokens[:, 1:].contiguous(),
            nullcontext if dtype == "fp32" else lambda: torch.autocast(kind, torch.bfloat16),
        )

    def differentiate(self, model: nn.Module, words: Any, following: Any) -> torch.Tensor:
        """The loss, after its gradients were computed."""
        self.optimiser.zero_grad(set_to_none=True)
        with self.block():
            loss: torch.Tensor = model(words, following)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, model: nn.Module | None = None) -> None:
        """The call that is timed."""
        self.loss = self.differentiate(
            self.model if model is None else model, self.words, self.following
        )
        self.optimiser.step()

    def first_wrong(self, allowed: float) -> str:
        """What is wrong with the loss or a gradient over a few tokens; empty if nothing is."""
        import torch

        exact = copy.deepcopy(self.model).cpu().double()
        for each in exact.modules():
            each.__dict__.pop("forward", None)
        few = slice(None, _CHECKED_TOKENS)
        words, following = self.words[:1, few], self.following[:1, few]
        right = exact(words.cpu(), following.cpu())
        right.backward()
        found = self.differentiate(self.model, words, following)
        # the loss is computed in float32: its error is in its gradient too
        if not abs(float(found) - float(right)) <= allowed * float(right):
            return f"the loss is {float(found):.6g} instead of {float(right):.6g}"
        pairs = zip(self.model.named_parameters(), exact.parameters(), strict=True)
        for (name, one), other in pairs:
            if one.grad is None or other.grad is None:
                return f"{name} has no gradient"
            error = torch.linalg.vector_norm(one.grad.double().cpu() - other.grad)
            size = torch.linalg.vector_norm(other.grad)
            # the bias of keys has none but rounding: softmax does not see it
            least = 1e-3 * float(torch.linalg.vector_norm(other.detach()) + 1e-6)
            if not float(error) <= allowed * max(float(size), least):
                return f"the gradient of {name} is off by {float(error / size):.2g} of its norm"
        return ""


def step(rank: Rank, *, effort: str, dtype: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Check the gradients, time steps, and check that the loss fell."""
    from portagpu.base.stats import summarise
    from portagpu.devices.contract import Capability
    from portagpu.suites.performance.matmul import refusal
    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    if dtype == "fp8":
        reading.skip = refusal(rank.gpu.device, rank.gpu.precision.fp8)  # type: ignore[arg-type]
        if reading.skip:
            return reading.to_json()
    shape = Sizes(**sizes)
    training = Training.start(rank, shape, dtype)
    rank.step("checking gradients")
    reading.reject(training.first_wrong(_ALLOWED[dtype]))
    if reading.wrong:
        return reading.to_json()
    training.step()
    first = float(training.loss)  # type: ignore[arg-type]
    peak = Capability.PEAK_MEMORY in rank.gpu.capabilities
    if peak:
        rank.gpu.reset_peak_memory_stats()
    rank.step("timing steps")
    timing = measure(stopwatch, training.step, PACES[Effort(effort)])
    if not float(training.loss) < first:  # type: ignore[arg-type]
        reading.reject(f"the loss of one batch went from {first:.6g} to {float(training.loss):.6g}")  # type: ignore[arg-type]
    operations = shape.flops_per_token * shape.tokens
    rate = operations / summarise(timing.seconds).median
    reading.notes = {
        "seed": _SEED,
        "flops_per_token": shape.flops_per_token,
        "flops_per_s": rate,
        "first_loss": first,
        "loss": float(training.loss),  # type: ignore[arg-type]
    }
    limit = rank.gpu.target.peak(dtype) if rank.gpu.target is not None else None
    if limit is not None:
        reading.notes["model_flops_utilisation"] = rate / (limit.value * 1e12)
    if peak:
        reading.notes["peak_bytes"] = rank.gpu.memory_stats()["allocated_bytes.all.peak"]
    reading.keep(timing, work=shape.tokens, flops=operations)
    return reading.to_json()


def compiled(rank: Rank, *, effort: str, dtype: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Time steps of the model as it is and compiled, in turns, and compare their losses."""
    import time

    import torch

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, time_in_turns

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    training = Training.start(rank, Sizes(**sizes), dtype)
    reading.reject(training.first_wrong(_ALLOWED[dtype]))
    faster = compile_model(training.model)
    rank.step("compiling")
    started = time.monotonic()
    batch = (training.words, training.following)
    try:
        found = float(training.differentiate(faster, *batch))
    except torch._dynamo.exc.TorchDynamoException as error:
        reading.skip = f"torch.compile builds nothing here: {str(error).splitlines()[0]}"
        return reading.to_json()
    reading.notes = {"seed": _SEED, "compile_s": time.monotonic() - started}
    right = float(training.differentiate(training.model, *batch))
    if not abs(found - right) <= _ALLOWED[dtype] * abs(right):
        reading.reject(f"the compiled loss is {found:.6g} instead of {right:.6g}")
    if reading.wrong:
        return reading.to_json()
    rank.step("timing steps")
    ratios, repeats = time_in_turns(
        stopwatch, reading, lambda: training.step(faster), training.step, PACES[Effort(effort)]
    )
    reading.keep_ratios(ratios, repeats=repeats, work=1.0)
    return reading.to_json()


def compile_model(model: nn.Module) -> Any:
    """The compiled model, which shares its weights with ``model``."""
    import torch

    return torch.compile(model)


def loading(rank: Rank, *, effort: str, workers: int) -> dict[str, Any]:
    """Time epochs of a DataLoader whose batches are copied to the device, and check their sums."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu, host=True)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED, "workers": workers}
    pinned = "pinned-memory" in rank.gpu.capabilities
    rows, columns = 16, _BATCH_BYTES // 4 // 16
    generator = torch.Generator().manual_seed(_SEED)
    data = torch.randint(
        0, 1 << 10, (_BATCHES * rows, columns), dtype=torch.int32, generator=generator
    )
    loader = DataLoader(
        TensorDataset(data),
        batch_size=rows,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
    )
    arrived: list[torch.Tensor] = []

    def epoch() -> None:
        arrived[:] = [to_device(rank, batch, pinned) for (batch,) in loader]

    rank.step("timing epochs")
    timing = measure(stopwatch, epoch, PACES[Effort(effort)])
    right = data.view(_BATCHES, -1).sum(1, dtype=torch.int64).tolist()
    found = [int(each.sum(dtype=torch.int64)) for each in arrived]
    if found != right:
        wrong = [place for place, pair in enumerate(zip(found, right)) if pair[0] != pair[1]]  # noqa: B905
        reading.reject(f"{len(found)} of {len(right)} batches arrived, and {wrong} have other sums")
    reading.keep(timing, work=data.nbytes, moved=data.nbytes)
    return reading.to_json()


def to_device(rank: Rank, batch: torch.Tensor, pinned: bool) -> torch.Tensor:
    """One batch on the device."""
    return batch.to(rank.gpu.device, non_blocking=pinned)
