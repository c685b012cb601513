"""Random numbers: what a seed fixes, and what a saved state brings back."""

from __future__ import annotations

from portagpu.suite import case

COUNT = 1000


def _draw(torch, gpu, count=COUNT):
    return torch.rand(count, device=gpu.device).cpu()


@case(
    "rng/seed-repeats",
    spec="The same seed gives bitwise the same numbers.",
    covers=("Backend.manual_seed", "Backend.generator"),
    traps=("P17",),
    smoke=True,
)
def test_seed_repeats(gpu, torch):
    gpu.manual_seed(1234)
    first = _draw(torch, gpu)
    gpu.manual_seed(1234)
    assert torch.equal(_draw(torch, gpu), first), "the seed 1234 gave other numbers the second time"


@case(
    "rng/seeds-differ",
    spec="Different seeds give different numbers.",
    covers=("Backend.manual_seed",),
)
def test_seeds_differ(gpu, torch):
    gpu.manual_seed(1)
    first = _draw(torch, gpu)
    gpu.manual_seed(2)
    assert not torch.equal(_draw(torch, gpu), first), "the seeds 1 and 2 gave the same numbers"


@case(
    "rng/state-restores",
    spec="A generator that is put back into a saved state repeats the numbers that followed it.",
    covers=("Backend.get_rng_state", "Backend.set_rng_state"),
    smoke=True,
)
def test_state_restores(gpu, torch):
    _draw(torch, gpu, 17)
    state = gpu.get_rng_state()
    first = _draw(torch, gpu)
    _draw(torch, gpu, 5)
    gpu.set_rng_state(state)
    assert torch.equal(_draw(torch, gpu), first), "other numbers followed the restored state"


@case(
    "rng/initial-seed",
    spec="The initial seed is the one that was last set.",
    covers=("Backend.initial_seed",),
    params={"seed": (0, 1, 2**31, 2**63 - 1)},
)
def test_initial_seed(gpu, seed):
    gpu.manual_seed(seed)
    assert gpu.initial_seed() == seed, f"the initial seed is {gpu.initial_seed()}, not {seed}"
