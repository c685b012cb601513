"""Random numbers: what a seed fixes, and what a saved state brings back.

Nothing here compares the numbers of devices of two products: streams of random numbers differ
between those by design, and no case promises otherwise.
"""

from __future__ import annotations

import portagpu as pg
from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotClaimed, case, refused

COUNT = 1000


def _draw(torch, gpu, count=COUNT):
    return _require_variation(torch.rand(count, device=gpu.device).cpu())


def _require_variation(numbers):
    """The drawn numbers; fails if all are equal, because a constant repeats with any seed."""
    least, most = numbers.aminmax() if numbers.numel() > 1 else (0, 1)
    assert least != most, f"{numbers.numel()} numbers that were drawn are all {float(least):g}"
    return numbers


@case(
    "rng/seed-repeats",
    spec="The same seed gives bitwise the same numbers.",
    covers=("Backend.manual_seed",),
    traps=("P17",),
    params={"draw": ("rand", "randn", "randint", "randperm", "bernoulli", "dropout")},
    smoke=True,
)
def test_seed_repeats(gpu, torch, draw):
    def numbers():
        if draw == "randint":
            drawn = torch.randint(0, 1 << 30, (COUNT,), device=gpu.device)
        elif draw == "bernoulli":
            drawn = torch.bernoulli(torch.full((COUNT,), 0.5, device=gpu.device))
        elif draw == "dropout":
            drawn = torch.nn.functional.dropout(torch.ones(COUNT, device=gpu.device), 0.5)
        else:
            drawn = getattr(torch, draw)(COUNT, device=gpu.device)
        return _require_variation(drawn)

    gpu.manual_seed(1234)
    first = numbers()
    gpu.manual_seed(1234)
    again = numbers()
    assert torch.equal(again, first), f"{draw} gave other numbers after the same seed"


@case(
    "rng/seed-is-the-devices",
    spec="The seed that a method sets is the one that torch's calls on the device use.",
    covers=("Backend.generator",),
)
def test_seed_is_the_devices(gpu, torch):
    gpu.manual_seed(99)
    default = _draw(torch, gpu)
    own = torch.Generator(device=gpu.device)
    own.manual_seed(99)
    numbers = _require_variation(torch.rand(COUNT, device=gpu.device, generator=own).cpu())
    assert torch.equal(numbers, default), "a generator with the same seed gave other numbers"


@case(
    "rng/function-manual-seed",
    spec="portagpu.manual_seed() seeds the current device.",
    covers=("portagpu.manual_seed",),
)
def test_function_manual_seed(gpu, torch):
    gpu.manual_seed(7)
    first = _draw(torch, gpu)
    pg.manual_seed(7)
    assert torch.equal(_draw(torch, gpu), first), "function and method seed differently"


@case(
    "rng/function-manual-seed-all",
    spec="portagpu.manual_seed_all() seeds every device, this one too.",
    covers=("portagpu.manual_seed_all",),
)
def test_function_manual_seed_all(gpu, torch):
    gpu.manual_seed(7)
    first = _draw(torch, gpu)
    pg.manual_seed_all(7)
    assert torch.equal(_draw(torch, gpu), first), "this device was not seeded among all"


@case(
    "rng/seed-returns-what-it-set",
    spec="seed() takes a seed from the system and returns the one that is in use.",
    covers=("Backend.seed", "portagpu.seed"),
    params={"call": ("method", "function")},
)
def test_seed_returns_what_it_set(gpu, torch, call):
    seed = gpu.seed if call == "method" else pg.seed
    returned = seed()
    assert gpu.initial_seed() == returned, f"{returned} was returned, {gpu.initial_seed()} is set"
    first = _draw(torch, gpu)
    gpu.manual_seed(returned)
    assert torch.equal(_draw(torch, gpu), first), "the returned seed does not repeat the numbers"


@case(
    "rng/seed-is-random",
    spec="Two calls of seed() give two seeds.",
    covers=("Backend.seed",),
)
def test_seed_is_random(backend):
    seeds = {backend.seed() for _ in range(4)}
    assert len(seeds) == 4, f"four calls of seed() gave {len(seeds)} different seeds"


@case(
    "rng/state-restores",
    spec="A generator that is put back into a saved state repeats the numbers that followed it.",
    covers=("Backend.get_rng_state", "Backend.set_rng_state"),
    params={"before": (0, 1, 17, 1000)},
    smoke=True,
)
def test_state_restores(gpu, torch, before):
    gpu.manual_seed(3)
    _draw(torch, gpu, before)
    state = gpu.get_rng_state()
    first = _draw(torch, gpu)
    _draw(torch, gpu, 5)
    gpu.set_rng_state(state)
    assert torch.equal(_draw(torch, gpu), first), "other numbers followed the restored state"


@case(
    "rng/state-is-bytes",
    spec="A state is a uint8 tensor of one dimension on the CPU, so that a checkpoint can hold it.",
    covers=("Backend.get_rng_state",),
)
def test_state_is_bytes(backend, torch):
    state = backend.get_rng_state()
    assert state.dtype == torch.uint8, f"the state is {state.dtype}"
    assert state.device.type == "cpu", f"the state is on {state.device}"
    assert state.dim() == 1, f"the state has {state.dim()} dimensions"


@case(
    "rng/function-state",
    spec="The functions for states read and write this device's generator.",
    covers=("portagpu.get_rng_state", "portagpu.set_rng_state"),
)
def test_function_state(gpu, torch):
    state = pg.get_rng_state()
    assert torch.equal(state, gpu.get_rng_state()), "function and method read different states"
    first = _draw(torch, gpu)
    pg.set_rng_state(state)
    assert torch.equal(_draw(torch, gpu), first), "the function did not restore the state"


@case(
    "rng/function-state-all",
    spec="The states of all devices are one for each, and restoring them restores this one.",
    covers=("portagpu.get_rng_state_all", "portagpu.set_rng_state_all"),
)
def test_function_state_all(gpu, torch):
    states = pg.get_rng_state_all()
    assert len(states) == gpu.device_count(), (
        f"{len(states)} states of {gpu.device_count()} devices"
    )
    first = _draw(torch, gpu)
    pg.set_rng_state_all(states)
    assert torch.equal(_draw(torch, gpu), first), "this device's state was not restored"


@case(
    "rng/wrong-state-is-refused",
    spec="What is not a state is refused, and the generator keeps its own.",
    covers=("Backend.set_rng_state",),
    outcome="unsupported",
)
def test_wrong_state_is_refused(gpu, torch):
    before = gpu.get_rng_state()
    broken = torch.zeros(3, dtype=torch.uint8)
    refused(lambda: gpu.set_rng_state(broken), (RuntimeError, ValueError, TypeError), "three bytes")
    assert torch.equal(gpu.get_rng_state(), before), "a refused state changed the generator"


@case(
    "rng/wave-is-whole-blocks",
    spec="Where random numbers are made as ATen's GPU kernels do, a wave is whole blocks of "
    "256 threads.",
    covers=("Backend.random_wave",),
)
def test_wave_is_whole_blocks(backend):
    try:
        wave = backend.random_wave()
    except Unsupported as error:
        raise NotClaimed(str(error)) from None
    assert isinstance(wave, int), f"random_wave() is {wave!r}"
    assert wave > 0, f"a wave is {wave} elements"
    assert wave % 256 == 0, f"a wave of {wave} elements is not a multiple of 256"


DRAWN = {
    # the draw: its mean, and its variance
    "randn": (0.0, 1.0),
    "randint": (4.5, 99 / 12),
    "bernoulli": (0.25, 3 / 16),
    "dropout": (1.0, 1 / 3),
    "exponential": (1.0, 1.0),
}


@case(
    "rng/draws-have-their-mean",
    spec="The mean of 100000 draws is within six standard errors of what is asked for.",
    outcome="bounded: |mean - expected| <= 6 sqrt(variance / n)",
    params={"draw": tuple(DRAWN)},
    does_not_show="the quality of the generator beyond its mean",
)
def test_draws_have_their_mean(gpu, torch, draw):
    count = 100_000
    gpu.manual_seed(2025)
    empty = torch.empty(count, device=gpu.device)
    numbers = (
        {
            "randn": lambda: torch.randn(count, device=gpu.device),
            "randint": lambda: torch.randint(0, 10, (count,), device=gpu.device),
            "bernoulli": lambda: torch.bernoulli(empty.fill_(0.25)),
            "dropout": lambda: torch.nn.functional.dropout(empty.fill_(1.0), 0.25),
            "exponential": empty.exponential_,
        }[draw]()
        .cpu()
        .double()
    )
    expected, variance = DRAWN[draw]
    away = abs(float(numbers.mean()) - expected)
    bound = 6 * (variance / count) ** 0.5
    assert away <= bound, f"the mean of {draw} is {away:.3g} from {expected}, at most {bound:.3g}"
    if draw == "randint":
        ends = (int(numbers.min()), int(numbers.max()))
        assert ends == (0, 9), f"whole numbers from 0 to 9 reach from {ends[0]} to {ends[1]}"
    if draw == "randn":
        spread = float(numbers.square().mean())
        assert abs(spread - 1) <= 6 * (2 / count) ** 0.5, f"the variance of randn is {spread}"


@case(
    "rng/questions-draw-nothing",
    spec="Waiting, reading memory and probing precision do not move the generator.",
    covers=("Backend.synchronize", "Backend.empty_cache", "Backend.dtype_support"),
)
def test_questions_draw_nothing(gpu, torch):
    questions = {
        "synchronize()": gpu.synchronize,
        "empty_cache()": gpu.empty_cache,
        "memory_stats()": gpu.memory_stats,
        "mem_get_info()": gpu.mem_get_info,
        "dtype_support()": lambda: gpu.dtype_support(torch.float32, probe=True),
        "float32_arithmetic()": lambda: gpu.float32_arithmetic("matmul"),
    }
    gpu.manual_seed(9)
    _draw(torch, gpu)
    before = gpu.get_rng_state().clone()
    moved = []
    for name, ask in questions.items():
        ask()
        if not torch.equal(gpu.get_rng_state(), before):
            moved.append(name)
            gpu.set_rng_state(before)
    assert not moved, f"the generator is moved by {', '.join(moved)}"


@case(
    "rng/generator-is-the-default",
    spec="generator() is of this device's type, and always the same one.",
    covers=("Backend.generator",),
)
def test_generator_is_the_default(backend):
    found = backend.generator()
    assert found.device.type == backend.device.type, f"the generator is of {found.device}"
    before = backend.get_rng_state()
    backend.generator().manual_seed(123)
    assert backend.initial_seed() == 123, "two calls gave two generators"
    backend.set_rng_state(before)


@case(
    "rng/default-generators-are-the-devices",
    spec="default_generators has the default generator of each device, by index.",
    covers=("portagpu.default_generators", "Backend.generator"),
)
def test_default_generators_are_the_devices(backend):
    found = len(pg.default_generators)
    assert found == backend.device_count(), (
        f"{found} generators for {backend.device_count()} devices"
    )
    backend.manual_seed(123)
    seed = pg.default_generators[backend.index].initial_seed()
    assert seed == 123, f"after manual_seed(123) the generator of the index has the seed {seed}"
    refused(lambda: pg.default_generators[found], IndexError, "a generator past the last")


def _draws_of_rank(rank):
    import torch
    import torch.distributed as dist

    def numbers():
        return torch.rand(16, device=rank.gpu.device).cpu().tolist()

    rank.gpu.manual_seed(100 + rank.rank)
    own = numbers()
    rank.gpu.manual_seed(7)
    same = numbers()
    rank.gpu.manual_seed(7)
    dist.barrier()
    if rank.rank == 1:
        numbers()
    dist.barrier()
    return [rank.gpu.product, own, same, numbers()]


@case(
    "rng/ranks-are-independent",
    spec="Ranks with two seeds draw other numbers, ranks of one product with one seed the same, "
    "and what one rank draws moves no other's generator.",
    covers=("Backend.manual_seed",),
    capability=Capability.COLLECTIVES,
)
def test_ranks_are_independent(world):
    (product, own, same, after), (other_product, other_own, other_same, other_after) = world(
        2, _draws_of_rank
    )
    assert own != other_own, "ranks 0 and 1 drew the same numbers after two seeds"
    if product == other_product:
        assert same == other_same, "ranks 0 and 1 drew other numbers after the same seed"
    assert after == same, "rank 0 drew other numbers after its seed, while rank 1 drew between"
    assert other_after != other_same, "rank 1 drew the same numbers twice in a row"
