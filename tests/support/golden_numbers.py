"""Golden files of functions over grids of arguments, their borders among them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from tests.support.golden import Golden, answer_of, digest_of, function_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_VALUES: Final = (0, 1, 999, 1000, 1023, 1024, 1e6 - 1, 3.14159265e9, 1e-7, 12345.678, -2.5, 1e15)
_TEXTS: Final = (
    "",
    "plain",
    "two\nlines\r\n",
    "tab\tand\x1b[31mred\x00",
    "\u202ebidi \ud800 \N{GREEK SMALL LETTER MU}",
    "x" * 300,
)


def _each(function: Callable[..., Any], *values: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each combination of arguments, and the answer."""
    for given in product(*values):
        yield tuple(ascii(each) for each in given), answer_of(function, *given)


def lines_of(function: Callable[..., Any], *values: Iterable[Any]) -> Iterator[str]:
    """The name of a function, and its answer for each combination of arguments."""
    return function_lines(f"{function.__module__}.{function.__name__}", _each(function, *values))


def _digested(function: Callable[..., Any], *values: Iterable[Any]) -> Iterator[str]:
    """One line for each value of the first argument."""
    first, *others = values
    yield f"# {function.__module__}.{function.__name__}, digests"
    for one in first:
        rows = [str(found) for found in _each(function, (one,), *others)]
        yield f"{one!r}: {len(rows)} rows, {digest_of('|'.join(rows))}"


def _words(_: Path) -> Iterator[str]:
    """Numbers and texts in words."""
    from portagpu.base import stats, text, units
    from portagpu.suites.screen import tally

    unit = ("GB/s", "B", "s", "us", "ms", "%", "TFLOP/s", "W", None, "GiB", "apples")
    yield from lines_of(units.worse_side, [each or "" for each in unit])
    yield from lines_of(units.number, _VALUES, (2, 4))
    yield from lines_of(units.quantity, _VALUES, unit[:8])
    yield from lines_of(units.to_base, (0.5, 2048), [each or "" for each in unit])
    yield from lines_of(units.size, (None, *_VALUES, 1536, 1 << 40))
    sizes = (
        "1",
        "1K",
        "1.5k",
        "64M",
        "2GiB",
        "3 GB",
        "",
        "K",
        "-1",
        "1e3",
        "9T",
        "0",
        "1.3",
        "1KB",
    )
    yield from lines_of(units.parse_size, sizes)
    yield from lines_of(units.count, (None, 0, 1, 2, 1234567), ("rank", "match"), (None, "matches"))
    yield from lines_of(
        units.duration,
        (0, 1e-7, 0.00095, 0.001, 0.5, 0.9996, 1, 59.94, 59.96, 60, 61, 3599.6, 3600, 86399, 1e6),
    )
    for function in (text.printable, text.printable_lines, text.escaped, text.one_line):
        yield from lines_of(function, _TEXTS)
    yield from lines_of(text.excerpt, _TEXTS, (5, 200))
    yield from lines_of(text.shortened, _TEXTS, (5, 120))
    known = ("all_reduce", "all_gather", "broadcast", "reduce")
    yield from lines_of(text.did_you_mean, ("all_reduc", "redduce", "xyz", ""), (known,), ("no",))
    ranks = ([], [0], [0, 1], [0, 1, 2], [0, 2], [5, 3, 4, 1], [1, 2, 4, 5, 6, 9])
    yield from lines_of(text.ranks_in_words, ranks)
    samples = (
        [1.0],
        [1.0, 2.0],
        [3.0, 1.0, 2.0],
        [1.0, 1.0, 1.0, 9.0],
        [float(n * n) for n in range(9)],
    )
    for each in (stats.mad, stats.summarise, stats.median_interval):
        yield from lines_of(each, [*samples, []])
    yield from lines_of(tally.excluded_rate, (0, 2, 3, 4, 1000))
    yield from lines_of(tally.judged_in_words, (0, 2, 3, 65536), (0, 131072))
    yield from lines_of(tally.recurrence_in_words, (0, 1, 2), (0, 1, 2, 100))


def _compared(_: Path) -> Iterator[str]:
    """Peers, tolerances and places."""
    from portagpu.runs.judges import peers
    from portagpu.suites.performance import fleet, load
    from portagpu.suites.screen import tally
    from portagpu.train.exact import draws

    yield from lines_of(peers.deviations_for, (0, 1, 10, 1000, 10**6), (None, 1, 4, 40))
    yield from lines_of(
        peers.majority,
        (("a",), ("a", "a"), ("a", "a", "b"), ("a", "b", "c", "b"), ("b", "a", "a", "b")),
    )
    for values in (
        [100, 101, 99, 100, 80],
        [100, 100, 100, 100, 104.9],
        [100, 100, 100, 100, 105.1],
        [1, 2, 3],
        [1, 2, 3, math.nan],
        [1, 2, 3, 4, math.inf],
        [-5, -5, -5, -9],
        [0, 0, 0, 0, 1],
    ):
        given = {f"gpu{n}": float(each) for n, each in enumerate(values)}
        found = peers.compare_peers(given)
        yield f"{values} -> {found}; {found.sentence}; {peers.peer_expectation(found, 'GB/s')}"
    yield from lines_of(
        fleet.tolerance, ([100.0] * 4, [90.0, 100, 110, 100], [100.0, 101, 99, 100])
    )
    yield from lines_of(load.drift_percent, ([1.0, 2.0], [1.0, 1.0, 2.0], [5.0, 4, 4, 3, 3, 3, 2]))
    yield from lines_of(draws.batch_seed, (0, 20261201), ("vectors/a", "b"), (0, 1))
    wrong = [
        [0],
        [0, 1],
        [3, 67, 131],
        list(range(64, 128)),
        [5, 69, 133, 197],
        [0, 17, 34, 51],
        [1, 9, 40, 200],
    ]
    for found in wrong:
        for lanes in (None, 32, 64):
            where = tally.locate(
                found,
                (16, 64),
                [0] * len(found),
                [1 << n % 16 for n in found],
                "bfloat16",
                16,
                lanes,
            )
            yield f"{found[:6]} {lanes} -> {where.to_json()}"
    yield from lines_of(tally.period, ([1], [1, 2], [0, 4, 8, 16], [3, 10, 17], [0, 5, 11]))
    yield from lines_of(tally.few_residues, ([0, 16, 32], [1, 2, 3, 4, 5], [7]), (2, 16, 32))


def _formats(_: Path) -> Iterator[str]:
    """Number formats: their limits, and every code of the small ones."""
    from portagpu.devices.precision.formats import FORMATS

    names = ("bits", "max", "min", "min_normal", "min_subnormal", "eps", "has_minus_zero")
    for name, each in FORMATS.items():
        yield f"{name}: " + ", ".join(f"{key} {answer_of(getattr, each, key)}" for key in names)
        codes = range(0, 1 << each.bits, 1 if each.bits <= 8 else (1 << each.bits - 10) + 1)
        decoded = [answer_of(each.decode, code) for code in codes]
        yield f"  {decoded[1:4]} ... {decoded[-2:]} {digest_of(str(decoded))}"
        special = [answer_of(getattr, each, key) for key in ("infinity_codes", "nan_codes")]
        yield f"  {special[0]} {special[1]}"


def _sized(_: Path) -> Iterator[str]:
    """Launches, reductions and products on each target, and occupancy over a grid."""
    from portagpu.devices.sizing import Sizing, occupancy
    from portagpu.devices.sizing.launch import launch_lines, plan_reduction, reduction_lines
    from portagpu.devices.sizing.matmul import matmul_lines
    from portagpu.facts.targets import load_targets

    for name, target in load_targets().items():
        if target.vendor == "cpu" or target.fact("exec.unit_count") is None:
            continue
        keys = (
            "unit_count",
            "max_threads_per_block",
            "max_threads_per_unit",
            "max_blocks_per_unit",
        )
        device = Sizing(
            target.arch.warp_size, *(target.value(f"exec.{key}") for key in keys), target
        )
        rows = []
        for n, item, registers, memory in product(
            (0, 1, 1000, 10**7), (None, 2, 16), (None, 64, 200), (0, 40_000)
        ):
            given = {"item_bytes": item, "registers": registers, "shared_memory": memory}
            rows.append(_launched(answer_of(device.launch, n, **given)))
        for n, block, work in product((100, 10**6), (64, 100, 256, 4096), (None, 1, 7)):
            launch = answer_of(device.launch, n, block=block, work_per_thread=work)
            rows.append(_launched(launch))
        yield f"{name}: {len(rows)} launches, {digest_of('|'.join(rows))}"
        yield from launch_lines(device.launch(10**7, item_bytes=2, registers=40))
        found = [answer_of(plan_reduction, device, n, 4) for n in (0, 1, 5000, 10**8)]
        yield f"  {digest_of(str(found))}"
        yield from reduction_lines(plan_reduction(device, 10**8, 4))
        for m, n, k, dtype, batch in (
            (4096, 4096, 4096, "bfloat16", 1),
            (17, 8192, 512, "float16", 3),
            (1, 128, 1 << 20, "float32", 1),
            (333, 444, 555, "float64", 1),
        ):
            plan = answer_of(device.matmul, m, n, k, dtype, batch=batch)
            yield f"  {m}x{n}x{k} {dtype} {batch}: {plan if isinstance(plan, str) else plan.tile}"
            if not isinstance(plan, str):
                yield f"  {digest_of('|'.join(matmul_lines(plan)))} {matmul_lines(plan)[0]}"
        rows = [
            _occupied(answer_of(occupancy, target, threads, registers, memory))
            for threads, registers, memory in product(
                (1, 256, 1000), (1, 33, 100, 255), (0, 16385, 65536)
            )
        ]
        yield f"  {len(rows)} kernels: {digest_of('|'.join(rows))}; {rows[15]}"


def _launched(launch: Any) -> str:
    """Without the facts of its target."""
    if isinstance(launch, str):
        return launch
    return f"{replace(launch, occupancy=None)} {_occupied(launch.occupancy)}"


def _occupied(found: Any) -> str:
    if found is None or isinstance(found, str):
        return str(found)
    limits = [(str(each.resource), each.blocks) for each in found.limits]
    return f"{found.blocks} {found.waves} {found.fraction} {found.per_simd} {limits}"


def _kernels(_: Path) -> Iterator[str]:
    """What configurations of Triton's kernels need, and which fit."""
    from portagpu.train.kernels import plan

    for kind in ("stream", "sum", "row", "matmul"):
        for config in plan.all_configs(kind):
            sizes = [plan.constants(config, item) for item in (1, 2, 4)]
            yield f"{kind} {config} {plan.shared_estimate(config)} {sizes}"
        for limits in product((32, 64), (256, 1024), (None, 48 << 10, 227 << 10)):
            found = plan.candidates(kind, plan.Limits(*limits))
            yield f"  {limits}: {[plan.all_configs(kind).index(each) for each in found]}"
    for name, variant in plan.variants_by_id().items():
        yield f"{name}: {variant}"[:200]


def _costs(_: Path) -> Iterator[str]:
    """Predicted times of collectives on each target with a model."""
    from portagpu.devices.collectives.choice import Hardware, Question
    from portagpu.devices.discovery import cost_model_for
    from portagpu.facts.targets import load_targets

    for name, target in load_targets().items():
        hardware = Hardware.of_target(target)
        model = answer_of(cost_model_for, target.vendor)
        if isinstance(model, str) or model is None:
            yield f"{name}: {model}"
            continue
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
            rows = []
            for size, (ranks, nodes) in product(
                (1, 1 << 12, 1 << 17, 1 << 23, 1 << 30), ((2, 1), (8, 1), (16, 2), (96, 12))
            ):
                asked = {"nic_gbs": 50.0} if nodes > 1 else {}
                question = answer_of(
                    Question,
                    operation=operation,
                    size_bytes=size,
                    ranks=ranks,
                    nodes=nodes,
                    hardware=hardware,
                    **asked,
                )
                found = answer_of(model.predict, question)
                rows.append(
                    found
                    if isinstance(found, str)
                    else str(
                        [(c.algorithm, c.protocol, f"{c.time_us:.9g}") for c in found.candidates]
                    )
                )
            yield f"{name} {operation}: {digest_of('|'.join(rows))} {rows[5][:110]}"


def _buckets(_: Path) -> Iterator[str]:
    from portagpu.devices.collectives import buckets

    sizes = [4 << 20] * 10 + [1000, 1 << 24, 5, 1 << 20]
    yield from lines_of(
        buckets.ddp_buckets, (sizes, [], [1], [-1], [30 << 20] * 3), (None, 1, 25, 0)
    )
    for backward_us in (0.0, 1.0, 5000.0, -1.0, math.nan):
        for choose in (buckets.choose_ddp, buckets.choose_fsdp):
            found = answer_of(choose, sizes, lambda size: 20 + size / 1e5, backward_us)
            yield f"{choose.__name__} {backward_us}: {found}"


def _plans(_: Path) -> Iterator[str]:
    """Memory and layouts of trainings."""
    from portagpu.facts.targets import load_target
    from portagpu.train.planning import MODELS, Layout, Recipe, cluster_of, estimate, kv_cache, plan
    from portagpu.train.planning.cluster import forward_flops
    from portagpu.train.planning.plans import parse_strategy
    from portagpu.train.planning.recipe import layers_of_parts

    yield from lines_of(layers_of_parts, (1, 7, 32), (1, 2, 3, 5, 7))
    yield from lines_of(
        parse_strategy, ("auto", "tp=2,pp=4", "tp=0", "tp", "", "cp=2,ep=8,dp=1", "tp=2,tp=2")
    )
    recipes = {
        f"{precision} {sharding} {recompute}": answer_of(
            Recipe, sequence=4096, precision=precision, sharding=sharding, recompute=recompute
        )
        for precision, sharding, recompute in product(
            ("fp32", "autocast-bf16"),
            ("ddp", "zero1", "zero3", "fsdp2"),
            ("none", "selective"),
        )
    }
    layouts = (
        Layout(),
        Layout(dp=8),
        Layout(tp=4, dp=2),
        Layout(tp=2, pp=2, dp=2, micro_batches=4),
    )
    for name, model in sorted(MODELS.items()):
        flops = forward_flops(model, 4096)
        yield f"{name}: {flops}"
        rows = []
        for said, recipe in recipes.items():
            for layout in layouts:
                found = answer_of(estimate, model, recipe, layout)
                rows.append(f"{said} {found} {answer_of(getattr, found, 'phase')}")
        yield f"  {len(rows)} estimates, {digest_of('|'.join(rows))}; {rows[-3][:100]}"
        recipe = Recipe(sequence=4096, kv_tokens=1000)
        yield f"  {answer_of(kv_cache, model, recipe, layouts[2])}"[:200]
    recipe = Recipe(sequence=8192, precision="autocast-bf16", sharding="fsdp2")
    for target, world, batch in (
        ("nvidia-h100-sxm", 8, 64),
        ("amd-mi300x", 8, 64),
        ("nvidia-h100-sxm", 16, 32),
    ):
        for name in ("llama-3.1-8b", "llama-3.1-70b")[world // 16 :]:
            nic = {"nic_gbs": 50.0} if world > 8 else {}
            found = plan(
                MODELS[name], cluster_of(load_target(target), world, **nic), recipe, batch=batch
            )
            counts = f"{len(found.ranked)} ranked, {len(found.rejected)} rejected"
            exact = digest_of(str((found.ranked, found.rejected)))
            yield f"{target} {world} {name}: {counts}, {exact}"
            for each in found.ranked[:5]:
                yield f"  {each.layout} {each.timing}"[:220]


def _masks(_: Path) -> Iterator[str]:
    """Random masks of visible devices, and what is wrong with them."""
    from portagpu.facts import visible
    from tests.support.visibility_rows import DEVICES

    chance = random.Random(7)  # noqa: S311 - made-up values
    words = [
        "0",
        "1",
        "2",
        "7",
        "8",
        "-1",
        "",
        " ",
        "GPU-aaaa0",
        "GPU-b222",
        "GPU-",
        "x",
        "03",
        "1 ",
        "MIG-1",
    ]
    names = (
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
    )
    for number in range(150):
        environment = {
            name: ",".join(chance.choice(words) for _ in range(chance.randint(0, 3)))
            for name in chance.sample(names, chance.randint(1, 3))
        }
        runtime = ("cuda", "rocm")[number % 2]
        found = answer_of(visible.resolve, environment, DEVICES, runtime)
        shown = found if isinstance(found, str) else [each.index for each in found.devices]
        problems = answer_of(visible.diagnose, environment, runtime)
        said = [str(each) for each in problems] if not isinstance(problems, str) else problems
        exact = f"{digest_of(str(found))[:6]} {digest_of(str(said))[:6]}"
        yield f"{runtime} {environment} -> {shown} {exact}"


NUMBERS: Final = {
    "words.txt": Golden("unit", _words),
    "compared.txt": Golden("unit", _compared),
    "formats.txt": Golden("unit", _formats),
    "sized.txt": Golden("unit", _sized),
    "kernels.txt": Golden("unit", _kernels),
    "costs.txt": Golden("unit", _costs),
    "buckets.txt": Golden("unit", _buckets),
    "plans.txt": Golden("unit", _plans),
    "masks.txt": Golden("unit", _masks),
}
