"""Exact work: right results pass, and each wrong element is found, with its place and its bits."""

from __future__ import annotations

import random
from typing import Any

import pytest

import portagpu
from tests.support.looped import looped

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.train.exact import judge, rule
from portagpu.train.exact.draws import Draws, mix
from portagpu.train.exact.memory import PATTERNS, HeldMemory
from portagpu.train.exact.probes import PROBES

HERE = [probe for probe in PROBES if probe.area != "collectives" and "peer" not in probe.name]
"""The probes that one process on one device runs."""
MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def gpu() -> portagpu.Backend:
    return portagpu.backend("cpu")


def splitmix64(state: int, count: int) -> list[int]:
    """The generator as its authors' C code has it: the state grows first."""
    found = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        found.append(z ^ (z >> 31))
    return found


def test_the_generator_is_splitmix64() -> None:
    # of the state 1234567, as Rosetta Code and the Java documentation print them
    published = [
        *(6457827717110365317, 3203168211198807973, 9817491932198370423),
        *(4593380528125082431, 16408922859458223821),
    ]
    assert splitmix64(1234567, 5) == published
    assert mix((1234567 + 0x9E3779B97F4A7C15) & MASK) == published[0]
    key = mix(7)
    for byte in b"ab":
        key = mix(key + byte + 1)
    drawn = [int(value) & MASK for value in Draws(7).bits("ab", (2, 3)).flatten()]
    assert drawn == [mix(key), *splitmix64(key, 5)]


def test_draws_keep_their_range_and_streams_differ() -> None:
    draws = Draws(1)
    values = draws.integers("x", (4096,), -3, 3)
    assert set(values.tolist()) == set(range(-3, 4))
    counts = torch.bincount(values + 3).double()
    # seven values of 4,096: the deviation is that of a binomial, six sigma
    assert (counts - 4096 / 7).abs().max() < 6 * (4096 * 6 / 49) ** 0.5
    assert not torch.equal(draws.bits("x", (64,)), draws.bits("y", (64,)))
    assert not torch.equal(draws.bits("x", (64,)), Draws(2).bits("x", (64,)))
    assert bool((draws.odd("x", (64,)) & 1).all())


@looped("probe", HERE)
def test_a_sound_device_passes_with_every_seed(probe, gpu) -> None:
    if refused := probe.refuses(gpu):
        assert "by itself" in refused
        assert probe.dtype.startswith("float8")
    for seed in (0, 1, 2**63):
        work = probe.make(gpu, Draws(seed), 1)
        for _ in range(2):
            result = work.run()
            assert result.numel() == work.results
            assert work.judge(result) is None, f"seed {seed}"
    assert probe.make(gpu, Draws(3), 2).results >= work.results


def changed(result: torch.Tensor, place: int, how: str) -> torch.Tensor:
    """The result with one wrong element."""
    found = result.clone()
    flat = found.view(-1)
    if how == "zero":
        flat[place] = 0
    elif how == "nan":
        flat[place] = float("nan") if found.is_floating_point() else -12345
    elif found.dtype is torch.bool:
        flat[place] = ~flat[place]
    elif found.is_floating_point():
        size = found.element_size()
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        flat.view(kind)[place] ^= 1
    else:
        flat[place] ^= 1
    return found


@looped("probe", HERE)
def test_one_wrong_element_is_found_with_its_place(probe, gpu) -> None:
    generator = random.Random(probe.name)  # noqa: S311 - places that can be drawn again
    work = probe.make(gpu, Draws(5), 1)
    right = work.run()
    assert work.judge(right) is None
    for how in ("lowest bit", "zero", "nan"):
        place = generator.randrange(right.numel())
        result = changed(right, place, how)
        if torch.equal(judge.bit_patterns(result), judge.bit_patterns(right)):
            continue  # it was zero already
        wrong = work.judge(result)
        assert wrong is not None, how
        assert (wrong.count, wrong.places.tolist()) == (1, [place]), how
        assert wrong.expected.tolist() == judge.bit_patterns(right).flatten()[[place]].tolist()
        assert wrong.found.tolist() == judge.bit_patterns(result).flatten()[[place]].tolist()
        assert wrong.shape == tuple(right.shape)


def test_devices_that_are_wrong_in_the_same_bits_have_one_digest() -> None:
    right = torch.arange(64, dtype=torch.float32)
    first, second, third = right.clone(), right.clone(), right.clone()
    first[3] = second[3] = 7
    third[4] = 7
    found = [judge.differences(each, right) for each in (first, second, third)]
    digests = [each.digest() for each in found if each is not None]
    assert digests[0] == digests[1] != digests[2]


def test_both_zeros_are_the_same_and_nan_is_not_itself_wrong() -> None:
    zeros = torch.tensor([0.0, -0.0])
    assert judge.differences(zeros, torch.zeros(2)) is None
    nan = torch.tensor([float("nan")])
    assert judge.differences(nan, nan.clone()) is None
    # SHA-256 of eight bytes of zero
    digest = "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
    assert judge.digest(zeros) == digest


def test_a_row_with_a_wrong_element_is_named() -> None:
    draws = Draws(11)
    a = draws.integers("a", (40, 30), -(2**31), 2**31 - 1)
    b = draws.integers("b", (30, 20), -(2**31), 2**31 - 1)
    # sums beyond 64 bits wrap, and the check holds for what wraps
    product = (a[:, :, None] * b[None]).sum(1)
    assert judge.wrong_rows(product, a, b, draws).tolist() == []
    product[7, 0] ^= 1 << 63
    product[7, 19] += 1
    product[31, 5] -= 1
    assert judge.wrong_rows(product, a, b, draws).tolist() == [7, 31]


def test_results_that_are_no_integers_in_their_units_are_wrong() -> None:
    rows, columns = torch.tensor([[4.0], [0.25]]), torch.tensor([[1.0, 2.0, 8.0]])
    integers = torch.tensor([[3, -5, 7], [1, 0, -(2**23)]])
    values = integers.float() * rows * columns
    found, bad = judge.integers_of(values, rows, columns)
    assert torch.equal(found, integers)
    assert not bad.any()
    values[0, 0] += 2.0
    values[0, 1] = float("nan")
    values[1, 2] = float("-inf")
    _, bad = judge.integers_of(values, rows, columns)
    assert bad.tolist() == [[True, True, False], [False, False, True]]


def test_operands_beyond_the_rule_are_refused() -> None:
    a = torch.full((2, 1024), 128)
    b = torch.full((1024, 2), 128)
    # 1,024 products of 2**14 are 2**24
    assert rule.subset_bound(a, b) == 2**24
    rule.check_subset(rule.subset_bound(a, b), 24, "a sum")
    with pytest.raises(rule.NotExactError, match=r"would not be exact: partial sums reach 1\.691"):
        rule.check_subset(rule.subset_bound(a, b + 1), 24, "a sum")
    rule.check_operands(torch.tensor([256, -256]), 8, "an operand")
    with pytest.raises(rule.NotExactError, match="257 has more than 8 bits"):
        rule.check_operands(torch.tensor([257]), 8, "an operand")


def test_powers_of_two_are_exact() -> None:
    exponents = torch.arange(-126, 128)
    found = rule.powers_of_two(exponents, "float32")
    assert found.tolist() == [2.0**e for e in range(-126, 128)]
    assert rule.powers_of_two(torch.tensor([-1022, 1023]), "float64").tolist() == [
        2.0**-1022,
        2.0**1023,
    ]


@looped("pattern", PATTERNS)
def test_a_bit_that_memory_loses_after_the_write_is_found(pattern) -> None:
    words = torch.empty(3 << 20, dtype=torch.int64)[: (2 << 20) + 17]
    held = HeldMemory(words, lambda: None, seed=4)
    held.fill(pattern)
    assert held.wrong(pattern) is None
    words[(2 << 20) + 3] ^= 1 << 21
    words[5] ^= 1
    wrong = held.wrong(pattern)
    assert wrong is not None
    assert (wrong.count, wrong.places.tolist(), wrong.shape) == (2, [5], (words.numel(),))
    assert int(wrong.found[0] ^ wrong.expected[0]) == 1


def test_a_device_without_a_dtype_refuses_its_probes(gpu) -> None:
    from dataclasses import replace
    from types import SimpleNamespace

    table = {key: value for key, value in gpu.precision.table.items() if key != torch.float64}
    poor = SimpleNamespace(name="poor", precision=replace(gpu.precision, table=table))
    refused = {probe.name for probe in HERE if probe.dtype == "float64" and probe.refuses(poor)}
    assert refused == {probe.name for probe in HERE if probe.dtype == "float64"}


def test_every_exact_probe_gives_its_published_digest() -> None:
    from portagpu.train.exact.published import published_digests
    from tests.support.exact_digests import SEED, digest_of, published

    stated = published_digests()
    assert stated.seed == SEED
    assert {probe.name: digest_of(probe) for probe in published()} == stated.sha256


def test_published_digests_are_those_of_products_in_integers() -> None:
    """numpy multiplies int64 by itself, and its draws are Python's integers."""
    import hashlib

    import numpy as np

    from portagpu.train.exact.published import published_digests

    stated = published_digests()

    def drawn(stream: str, rows: int, columns: int, largest: int) -> Any:
        key = mix(stated.seed)
        for byte in stream.encode():
            key = mix(key + byte + 1)
        bits = [mix(key), *splitmix64(key, rows * columns - 1)]
        width = 2 * largest + 1
        values = [-largest + ((value >> 32) * width >> 32) for value in bits]
        return np.array(values, dtype=np.int64).reshape(rows, columns)

    for name, (m, n, k), largest, kind in (
        ("products/float32[square]", (256, 256, 256), 255, np.float32),
        ("products/tf32[odd]", (257, 131, 255), 255, np.float32),
        ("products/float64[thin]", (1024, 16, 512), 1 << 21, np.float64),
        ("products/int8[square]", (256, 256, 256), 64, np.int32),
    ):
        exact = drawn("a", m, k, largest) @ drawn("b", k, n, largest)
        found = hashlib.sha256(exact.astype(kind).tobytes()).hexdigest()
        assert found == stated.sha256[name], name


def test_products_beyond_the_accumulator_are_refused() -> None:
    from portagpu.train.exact import products

    draws = Draws(1)
    a = draws.integers("a", (4, 4096), -255, 255)
    b = draws.integers("b", (4096, 4), -255, 255)
    for dtype, bits in (("bfloat16", 24), ("float8_e4m3fn", 14)):
        assert rule.ACCUMULATOR_BITS[dtype] == bits
        with pytest.raises(rule.NotExactError, match=f"and {bits} bits hold {2**bits}"):
            rule.check_subset(rule.subset_bound(a, b), bits, "a product")
        # its own operands have fewer bits there
        found = products._random_operands(dtype, draws, 4, 4, 4096, scaled=False)
        assert rule.subset_bound(found.a, found.b) <= 2**bits


def test_a_wrong_tile_is_found_whole(gpu) -> None:
    (probe,) = [each for each in HERE if each.name == "products/float32[square]"]
    work = probe.make(gpu, Draws(2), 1)
    result = work.run()
    result[64:80, 32:48] += 1
    wrong = work.judge(result)
    assert wrong is not None
    rows, columns = wrong.places // 256, wrong.places % 256
    assert wrong.count == 256
    assert (int(rows.min()), int(rows.max())) == (64, 79)
    assert (int(columns.min()), int(columns.max())) == (32, 47)


def test_a_check_that_goes_wrong_itself_is_reported(gpu) -> None:
    result = torch.ones(3, 4)
    wrong = judge.differences_of_rows(result, torch.tensor([1]), torch.ones(1, 4))
    assert (wrong.count, wrong.places.tolist(), wrong.shape) == (1, [], (3, 4))
