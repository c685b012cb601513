"""Kernels: work that a warp of 64 lanes, its masks and its indices get wrong if written for 32."""

from __future__ import annotations

import math
import time
from pathlib import Path

from portagpu.suites.conformance import NotClaimed, case

LANES = (1, 31, 32, 33, 63, 64, 65, 127, 1000, 4097)
"""Numbers of elements below, at and above one warp of 32 and of 64, and more than a block."""
LOAD_MS, SPINS, CALIBRATIONS = 200.0, 60, 5


@case(
    "kernels/every-lane-is-counted",
    spec="Selecting, compacting and counting by a mask find the elements of every lane.",
    traps=("K02", "K03"),
    params={"n": LANES},
)
def test_every_lane_is_counted(gpu, torch, n):
    every_third = [place for place in range(n) if place % 3 != 1]
    mask = torch.tensor([place % 3 != 1 for place in range(n)], device=gpu.device)
    values = torch.arange(n, device=gpu.device)
    found = {
        "nonzero": mask.nonzero().flatten().tolist(),
        "masked_select": values.masked_select(mask).tolist(),
        "boolean index": values[mask].tolist(),
    }
    for name, places in found.items():
        lost = sorted(set(every_third) - set(places))
        assert places == every_third, f"{name} of {n} elements loses {lost[:4]} or their order"
    count = int(mask.sum())
    assert count == len(every_third), f"{count} of {len(every_third)} set elements are counted"


@case(
    "kernels/prefix-sums",
    spec="A prefix sum and a bucket search over more than one warp have no two elements share a "
    "place.",
    traps=("K02", "K05"),
    params={"n": LANES},
)
def test_prefix_sums(gpu, torch, n):
    ones = torch.ones(n, dtype=torch.int64, device=gpu.device)
    offsets = ones.cumsum(0).tolist()
    assert offsets == list(range(1, n + 1)), f"prefix sums of {n} ones are not 1 to {n}"
    edges = torch.arange(0, 2 * n, 2, device=gpu.device)
    buckets = torch.bucketize(torch.arange(1, 2 * n, 2, device=gpu.device), edges).tolist()
    assert buckets == list(range(1, n + 1)), f"{n} values are put into buckets {buckets[:4]}..."


@case(
    "kernels/one-among-many",
    spec="A reduction finds the one element that differs, on whichever lane it is.",
    traps=("K03", "K05"),
    params={"n": (64, 127, 1024)},
)
def test_one_among_many(gpu, torch, n):
    # row r has its one in column r
    values = torch.eye(n, device=gpu.device)
    places = values.argmax(1).tolist()
    wrong = [row for row, place in enumerate(places) if place != row]
    assert not wrong, f"of {n} columns the greatest in row {wrong[0]} is said to be another"
    sums = set(values.sum(1).tolist()) | set(values.amax(1).tolist())
    assert sums == {1.0}, f"sums and maxima of rows with a single one are {sorted(sums)[:3]}"
    assert bool(values.any(1).all()), "a row with a single one is said to have none"


@case(
    "kernels/lane-past-the-block",
    spec="A reduction over rows of any length takes in all of it and nothing after it.",
    traps=("K05",),
    params={"n": (33, 64, 65, 1023, 1025, 5000)},
)
def test_lane_past_the_block(gpu, torch, n):
    # whole numbers: exact in any order; the poison is what a block must not read
    base = torch.full((8, n + 64), math.inf, device=gpu.device)
    base[:, :n] = torch.arange(n, device=gpu.device) % 7
    expected = float(sum(place % 7 for place in range(n)))
    sums = base[:, :n].sum(1).tolist()
    assert sums == [expected] * 8, f"rows of {n} elements sum to {sums[0]}, not {expected}"


ROWS = 8
OUTSIDE = (
    *(("index_select", row) for row in (-1, ROWS)),
    *(("embedding", row) for row in (-1, ROWS)),
    *((name, ROWS) for name in ("embedding_bag", "gather", "scatter", "index", "index_add")),
)
"""Calls, and a row that a table of 8 rows does not have for them. torch's kernel of embedding_bag
for CUDA looks for rows after the last one alone (aten/src/ATen/native/cuda/EmbeddingBag.cu)."""


def _look_outside(rank, calls):
    """What each call did, until the device has raised: then it may not go on in this process."""
    import torch
    from torch.nn import functional

    device = rank.gpu.device
    table, one = torch.ones(ROWS, 4, device=device), torch.ones(1, 4, device=device)
    every = {
        "index_select": lambda row: table.index_select(0, row),
        "embedding": lambda row: functional.embedding(row, table),
        "embedding_bag": lambda row: functional.embedding_bag(
            row, table, torch.zeros(1, dtype=torch.long, device=device)
        ),
        "gather": lambda row: table.gather(0, row.view(1, 1)),
        "scatter": lambda row: table.scatter(0, row.view(1, 1), one),
        "index": lambda row: table[row],
        "index_add": lambda row: table.index_add(0, row, one),
    }
    said = []
    for name, row in calls:
        try:
            found = every[name](torch.tensor([row], device=device))
            rank.gpu.synchronize()
            said.append(f"gave {found.flatten()[:4].tolist()}")
        except (IndexError, RuntimeError) as error:
            said.append(f"raised {type(error).__name__}")
            try:
                (table + 1).sum().item()
            except RuntimeError:
                break
    return said


@case(
    "kernels/index-out-of-range",
    spec="Where one call refuses an index that its table does not have (it raises, or ends the "
    "process), all do. A device may refuse none: then indices are to be checked on the host.",
    traps=("K20",),
)
def test_index_out_of_range(in_child, record):
    said = []
    while len(said) < len(OUTSIDE):
        left = OUTSIDE[len(said) :]
        # of a process that ends nobody knows in which call, unless it has one alone
        done = in_child(_look_outside, calls=left if not said else left[:1])
        if not done.ok and not said and len(left) > 1:
            done = in_child(_look_outside, calls=left[:1])
        said += done.values[0] if done.ok else ["ended the process"]
    gave = [each.startswith("gave") for each in said]
    every = [
        f"{name} of row {row} of {ROWS} {each}"
        for (name, row), each in zip(OUTSIDE, said, strict=True)
    ]
    if all(gave):
        record("no index is checked on the device")
    else:
        taken = [each for each, wrong in zip(every, gave, strict=True) if wrong]
        assert not taken, f"{'; '.join(taken)}, where other calls refuse such an index"


@case(
    "kernels/first-call-of-a-shape",
    spec="How much longer the first convolution of a shape takes than the twentieth is the "
    "library's affair; it belongs to no measurement.",
    outcome="undefined",
    traps=("E09",),
)
def test_first_call_of_a_shape(gpu, torch, record):
    layer = torch.nn.Conv1d(8, 8, 3).to(gpu.device)
    ratios = []
    for length in (101, 211, 307):
        signal = torch.ones(1, 8, length, device=gpu.device)
        seconds = []
        for _ in range(20):
            gpu.synchronize()
            started = time.perf_counter()
            layer(signal)
            gpu.synchronize()
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[0] / seconds[-1])
    record(f"the first call took up to {max(ratios):.0f} times as long as the twentieth")


SOURCE = """
#include <mma.h>
#if CUDA_VERSION >= 12000
#endif
__global__ void __launch_bounds__(256, 4) kernel(int *out) {
  __shared__ int s[32];
  int lane = threadIdx.x & 31;
  unsigned mask = __ballot_sync(0xffffffff, lane < 7);
  s[threadIdx.x >> 5] = __popc(mask);
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  out[threadIdx.x] = s[0] + warpSize;
}
"""
KEPT = {
    "a mask of 32 lanes": "0xffffffff",
    "a count of 32 bits": "__popc(",
    "a lane of 32": "& 31",
    "a slot for each 32 threads": ">> 5",
    "two launch bounds": "__launch_bounds__(256, 4)",
    "PTX": "%%laneid",
    "CUDA's matrix header": "<mma.h>",
}


@case(
    "kernels/translated-sources",
    spec="What torch's translation of CUDA sources leaves as it was written for 32 lanes.",
    outcome="undefined",
    default=False,
    traps=("K03", "K04", "K09", "K12", "K21", "K22"),
)
def test_translated_sources(torch, tmp_path, record):
    source, folder = tmp_path / "kernel.cu", str(tmp_path)
    source.write_text(SOURCE, encoding="utf-8")
    try:
        from torch.utils.hipify.hipify_python import hipify

        result = hipify(
            folder,
            output_directory=folder,
            extra_files=[str(source)],
            is_pytorch_extension=True,
            show_detailed=False,
        )
    except (ImportError, OSError, RuntimeError, ValueError, TypeError) as error:
        raise NotClaimed(f"torch translates nothing here: {error}") from error
    paths = [Path(each.hipified_path) for each in result.values() if each.hipified_path]
    text = paths[0].read_text(encoding="utf-8") if paths else ""
    kept = [what for what, pattern in KEPT.items() if pattern in text]
    record(f"of {len(KEPT)} constructs torch {torch.__version__} keeps {', '.join(kept) or 'none'}")


@case(
    "kernels/calibrated-spin",
    spec="A spin of 20 ms that was calibrated by events under load lasts 20 ms, whatever the "
    "device counts.",
    outcome="bounded: within 20 % of 20 ms",
    traps=("K19", "G05"),
)
def test_calibrated_spin(gpu, torch):
    spin = getattr(torch.get_device_module(gpu.device), "_sleep", None)
    if spin is None:
        raise NotClaimed(f"torch has nothing that spins on {gpu.device.type!r}")

    def spin_ms(cycles):
        start, end = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
        start.record()
        spin(cycles)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    asked, cycles, spun_ms = 20.0, 100_000, 0.0
    # an idle device counts at a fraction of its clock, which rises under load
    for _ in range(SPINS):
        found = spin_ms(cycles)
        spun_ms += found
        if spun_ms >= LOAD_MS:
            break
        cycles *= 2 if found < asked else 1
    tried = []
    for _ in range(CALIBRATIONS):
        cycles = max(1, int(cycles * asked / max(found, asked / 100)))
        found = spin_ms(cycles)
        tried.append(found)
        if abs(found - asked) <= 0.2 * asked:
            return
    said = ", ".join(f"{each:.1f}" for each in tried)
    raise AssertionError(f"spins that were calibrated to {asked} ms took {said} ms")
