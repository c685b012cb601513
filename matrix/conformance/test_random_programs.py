"""Cases that search: random programs of each area against its model, and torch's own samples."""

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import Search, case


@case(
    "collectives/random-programs",
    spec="Each rank gets what the model gives: the right values, no others written, inputs as they "
    "were, whatever operation, dtype, root, group and order.",
    capability=Capability.COLLECTIVES,
    outcome="bounded: (n-1) u sum|x| + u |sum| where numbers are not exact in any order",
    covers=("Comm.reduce_ops",),
    traps=("C01", "C02", "P13", "P20"),
    params={"n": (2, 3, 4, 8)},
    search=Search("collectives-{n}", seconds={2: 2.0, 3: 1.0, 4: 2.0, 8: 0.5}),
    smoke={"n": 2},
    does_not_show="ranks of one machine: nothing about several machines or their network",
)
def test_collectives_programs(search, ranks, n):
    search()


MEMORY_CALLS = (
    *("memory_stats", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"),
    *("memory_reserved", "max_memory_reserved", "empty_cache", "ipc_collect"),
    *("mem_get_info", "device_memory_used"),
)


@case(
    "memory/random-programs",
    spec="The counters of memory follow the tensors that live, within 16 MiB for each, and these "
    "keep what was written into them and their views.",
    outcome="bounded: 16 MiB for each tensor that came or went since empty_cache()",
    covers=(
        *(f"{of}.{name}" for of in ("Backend", "portagpu") for name in MEMORY_CALLS),
        "Backend.get_device_properties",
    ),
    traps=("M07",),
    search=Search("memory", seconds=1),
    smoke=True,
    does_not_show="this process only, and small amounts: nothing about a device that is full",
)
def test_memory_programs(search):
    search()


@case(
    "operators/samples",
    spec="Each operator and dtype that torch declares gives what float64 on the CPU gives.",
    outcome="bounded: growth(n, u) (S + |y|), n and S by class of operators",
    params={"kind": ("elementwise", "movement", "reductions", "linalg", "nn", "other")},
    # the first pass, each operator in one dtype, may take three times as long
    search=Search(
        "operators-{kind}",
        seconds={
            "elementwise": 2.5,
            "movement": 2,
            "reductions": 2,
            "linalg": 2.5,
            "nn": 4,
            "other": 1.5,
        },
    ),
    does_not_show="values beyond those of torch's samples, and operators that torch does not list",
)
def test_samples_of_operators(search, kind):
    search()


@case(
    "precision/random-programs",
    spec="Casts, arithmetic, sums, products, indexing and their gradients give what exact numbers "
    "give, and change nothing else.",
    outcome="bounded: exact where the format rounds once, else by the number of terms and u",
    traps=("P01", "P05", "P13", "P20"),
    search=Search("numbers", seconds=4),
    smoke=True,
    does_not_show="values and rounding, not speed",
)
def test_precision_programs(search):
    search()


@case(
    "precision/sizes",
    spec="Products, sums, sorts, indexing and copies are right on both sides of the sizes at which "
    "kernels and index types change.",
    outcome="exact",
    search=Search("sizes", seconds=3),
    does_not_show="sizes between, and operands whose sums are rounded",
)
def test_sizes(search):
    search()


@case(
    "precision/autocast-programs",
    spec="Autocast computes in the dtype of its innermost block, in this thread, with weights as "
    "they are now.",
    capability=Capability.AUTOCAST,
    outcome="bounded: by the number of terms and u of the dtype",
    covers=("Backend.autocast", "portagpu.autocast"),
    search=Search("autocast", seconds=1),
    smoke=True,
)
def test_autocast_programs(search):
    search()


@case(
    "precision/scaler-programs",
    spec="A gradient scaler grows, backs off and skips steps as torch documents.",
    capability=Capability.AUTOCAST,
    covers=("Backend.GradScaler", "portagpu.GradScaler"),
    search=Search("scaler", seconds=1),
    smoke=True,
)
def test_scaler_programs(search):
    search()


@case(
    "profiling/random-programs",
    spec="A profiler sees each range once, with its name, around what it encloses, also after "
    "errors and in threads.",
    covers=(
        "Backend.annotate",
        "Backend.listens",
        "Backend.range_push",
        "Backend.range_pop",
        "portagpu.annotate",
    ),
    search=Search("ranges", seconds=1),
    smoke=True,
)
def test_profiling_programs(search):
    search()


@case(
    "rng/random-programs",
    spec="Equal states give equal numbers, others do not, and no call changes another generator.",
    covers=(
        "Backend.generator",
        "Backend.manual_seed",
        "Backend.get_rng_state",
        "Backend.set_rng_state",
        "Backend.initial_seed",
        "portagpu.initial_seed",
        "portagpu.manual_seed",
    ),
    traps=("P17",),
    search=Search("generators", seconds=1.5),
    smoke=True,
)
def test_rng_programs(search):
    search()


STREAMS_CALLS = (
    *("synchronize", "Stream", "stream", "current_stream", "set_stream", "default_stream"),
    *("Event", "Graph", "graph", "graph_pool_handle", "is_current_stream_capturing"),
)


@case(
    "streams/random-programs",
    spec="Work runs in the order that streams, events, waits and graphs fix, while it is proved to "
    "be in flight.",
    capability=(Capability.STREAMS, Capability.EVENTS),
    outcome="bounded: |elapsed - the host's clock around both events| <= 1 ms + 0.1 %",
    covers=(
        *(f"{of}.{name}" for of in ("Backend", "portagpu") for name in STREAMS_CALLS),
        "portagpu.CUDAGraph",
    ),
    traps=("G03", "G05"),
    search=Search("ordering", seconds=3),
    unaltered=("asynchrony",),
    smoke=True,
    does_not_show="that work overlaps; on a device that is done when a call returns, any wait",
)
def test_streams_programs(search):
    search()
