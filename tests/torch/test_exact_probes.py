"""Exact work: right results pass, and each wrong element is found, with its place and its bits."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import portagpu
from tests.support.looped import looped

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.train.exact import judge
from portagpu.train.exact.draws import Draws, mix
from portagpu.train.exact.memory import PATTERNS, HeldMemory
from portagpu.train.exact.probes import PROBES
from tests.support.faulty_device import Fault, installed, words_of

HERE = [
    probe
    for probe in PROBES
    if probe.area not in ("collectives", "memory") and "peer" not in probe.name
]
"""The probes that one process on one device runs; memory has tests of its own."""
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
    assert judge.subset_bound(a, b) == 2**24
    judge.check_subset(judge.subset_bound(a, b), 24, "a sum")
    with pytest.raises(judge.NotExactError, match=r"would not be exact: partial sums reach 1\.691"):
        judge.check_subset(judge.subset_bound(a, b + 1), 24, "a sum")
    judge.check_operands(torch.tensor([256, -256]), 8, "an operand")
    with pytest.raises(judge.NotExactError, match="257 has more than 8 bits"):
        judge.check_operands(torch.tensor([257]), 8, "an operand")


def test_powers_of_two_are_exact() -> None:
    exponents = torch.arange(-126, 128)
    found = judge.powers_of_two(exponents, "float32")
    assert found.tolist() == [2.0**e for e in range(-126, 128)]
    assert judge.powers_of_two(torch.tensor([-1022, 1023]), "float64").tolist() == [
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


def test_much_memory_has_few_parts(monkeypatch) -> None:
    monkeypatch.setattr("portagpu.train.exact.memory._CHUNK", 4)
    words = torch.empty(10_000, dtype=torch.int64)
    held = HeldMemory(words, lambda: None, seed=4)
    assert len(list(held._chunks())) == 250
    for pattern in PATTERNS:
        held.fill(pattern)
        assert held.wrong(pattern) is None
    words[9_999] ^= 1
    assert held.wrong(PATTERNS[-1]).places.tolist() == [9_999]


def test_memory_that_changes_under_load_is_found(gpu) -> None:
    probes = [each for each in PROBES if each.area == "memory"]
    assert [each.name for each in probes] == [f"memory/int64[{name}]" for name in PATTERNS]
    work = probes[-1].make(gpu, Draws(3), 1)
    words = work.run()
    assert (words.nbytes, work.results) == (1 << 20, 1 << 17)
    assert work.judge(words) is None
    words[1000] ^= 1 << 62
    assert work.judge(words).places.tolist() == [1000]
    words[1000] ^= 1 << 62
    for probe in probes[:-1]:
        other = probe.make(gpu, Draws(3), 1)
        other.held.fill(other.pattern)
        assert other.judge(other.held.words) is None
        # no pattern is another's
        assert work.held.words.copy_(other.held.words) is words
        assert work.judge(words) is not None


def test_a_device_without_a_dtype_refuses_its_probes(gpu) -> None:
    from types import SimpleNamespace

    table = {key: value for key, value in gpu.precision.table.items() if key != torch.float64}
    poor = SimpleNamespace(name="poor", precision=replace(gpu.precision, table=table))
    refused = {probe.name for probe in HERE if probe.dtype == "float64" and probe.refuses(poor)}
    assert refused == {probe.name for probe in HERE if probe.dtype == "float64"}


class Reference:
    """Draws in Python's integers, by numpy's products and powers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def bits(self, stream: str, count: int) -> list[int]:
        key = mix(self.seed)
        for byte in stream.encode():
            key = mix(key + byte + 1)
        return [mix(key), *splitmix64(key, count - 1)]

    def integers(self, stream: str, shape: tuple[int, ...], low: int, high: int) -> Any:
        import numpy as np

        count, values = int(np.prod(shape)), high - low + 1
        if values <= 1 << 12:
            words = self.bits(stream, -(-count // 4))
            lanes = [word >> shift & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
            drawn = [low + (lane * values >> 16) for lane in lanes[:count]]
        else:
            drawn = [low + ((word >> 32) * values >> 32) for word in self.bits(stream, count)]
        return np.array(drawn, dtype=np.int64).reshape(shape)


def test_draws_of_few_values_take_16_bits_each() -> None:
    reference = Reference(9)
    for shape, low, high in (
        ((5, 3), -7, 7),
        ((4,), 0, 4095),
        ((3, 3), -(2**23), 2**23),
        ((0,), 0, 1),
    ):
        drawn = Draws(9).integers("x", shape, low, high)
        assert drawn.dtype is torch.int64
        assert drawn.tolist() == reference.integers("x", shape, low, high).tolist()


@looped("bits", [3, 7, 8, 22])
def test_all_bits_of_operands_toggle_from_each_term_to_the_next(bits) -> None:
    largest = (1 << bits) - 1
    drawn = Draws(1).toggling("x", (6, 64), largest)
    sizes = drawn.abs()
    assert bool((sizes[1:] ^ sizes[:-1] == largest).all())
    assert bool((sizes[:, 1:] ^ sizes[:, :-1] == largest).all())
    adjacent = 0b11 << torch.arange(bits - 1)
    assert not bool((sizes.unsqueeze(-1) & adjacent == adjacent).any()), "two bits next to it"
    assert {int(each) for each in drawn.sign().unique()} == {-1, 1}


def test_products_beyond_the_rule_refuse_to_run(gpu) -> None:
    from portagpu.train.exact import products

    kinds = {each.name: each for each in products.KINDS}

    def made(name: str, form: products.Form, **changes: Any) -> str:
        with pytest.raises(judge.NotExactError) as caught:
            products.make(replace(kinds[name], **changes), form, gpu, Draws(1), 1)
        return str(caught.value)

    for name, bits, largest in (
        ("bfloat16", 24, 255),
        ("float32", 24, 255),
        ("float8_e4m3fn", 14, 7),
    ):
        long = products.Form(16, 16, 4096, largest, largest)
        said = made(name, long)
        assert said.startswith(f"a product in {name} would not be exact: partial sums reach")
        assert said.endswith(f"and {bits} bits hold {2**bits}")
        products.make(kinds[name], replace(long, k=128), gpu, Draws(1), 1)
    wide = products.Form(16, 16, 16, 3000, 1)
    assert "has more than 11 bits" in made("tf32", wide)
    products.make(kinds["float32"], wide, gpu, Draws(1), 1)
    small = products.Form(16, 16, 16, 31, 31)
    # 2**-15 is subnormal, and 31 * 2**12 is above the largest
    assert "not in the normal range of float16" in made("float16", small, exponents=(-15, 0))
    assert "not in the normal range of float16" in made("float16", small, exponents=(0, 12))
    # the operands fit, and their products do not
    assert "from 2^-16 to" in made("float16", small, exponents=(-8, -8))
    single = products.Form(16, 16, 16, 1 << 25, 1, terms=1)
    with pytest.raises(judge.NotExactError, match="has more than 24 bits"):
        products.make_single(kinds["float32"], single, gpu, Draws(1), 1)


def test_the_bound_of_partial_sums_is_never_below_them() -> None:
    generator = random.Random(5)  # noqa: S311 - numbers that can be drawn again
    for seed in range(30):
        m, k, n = (generator.randrange(1, 9) for _ in range(3))
        draws = Draws(seed)
        a = draws.integers("a", (m, k), -generator.randrange(1, 4096), generator.randrange(4096))
        b = draws.integers("b", (k, n), -generator.randrange(1, 4096), generator.randrange(4096))
        products = a[:, :, None] * b[None]
        subsets = products.clamp(min=0).sum(1), -products.clamp(max=0).sum(1)
        assert judge.subset_bound(a, b) >= max(int(each.max()) for each in subsets)
    # one of 1,000 elements is not zero: the largest by the sum is below the product of the norms
    sparse = torch.zeros(1000, 1, dtype=torch.int64)
    sparse[3] = 7
    assert judge.subset_bound(torch.full((1, 1000), 5), sparse) == 35


def test_every_bit_of_full_operands_is_seen_as_zero_and_one(gpu) -> None:
    names = ("float64", "float32", "float16", "float8_e4m3fn")
    probes = {each.name: each for each in PROBES}
    for name in names:
        work = probes[f"products/{name}[full]"].make(gpu, Draws(4), 1)
        for operand in work.compute.args[2:]:
            numbers = operand.flatten().double()
            numbers = numbers[numbers != 0]
            # without their powers of two; numbers of a half of the bits or less do not count
            fraction = numbers.frexp().mantissa.abs() * 2.0 ** judge.SIGNIFICANT_BITS[name]
            bits = fraction.to(torch.int64)
            for place in range(judge.SIGNIFICANT_BITS[name] - 1):
                assert set((bits >> place & 1).tolist()) == {0, 1}, (name, place)


def test_a_wrong_reference_is_reported_as_long_as_it_is_wrong(gpu, monkeypatch) -> None:
    from portagpu.train.exact import products

    (kind,) = [each for each in products.KINDS if each.name == "bfloat16"]
    work = products.make(kind, products.Form(32, 48, 64, 255, 255), gpu, Draws(8), 1)
    matmul, result = torch.Tensor.__matmul__, work.run()

    def wrong_in_float32(left: Any, other: Any) -> Any:
        found = matmul(left, other)
        if found.dtype is torch.float32:
            found[3, 4] *= 2
        return found

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", wrong_in_float32)
        for _ in range(2):
            wrong = work.judge(result)
            assert (wrong.count, wrong.places.tolist(), wrong.dtype) == (1, [148], "float32")
    assert work.judge(result) is None


def test_more_wrong_rows_than_are_located_count_too(gpu) -> None:
    (probe,) = [each for each in HERE if each.name == "products/int8[square]"]
    work = probe.make(gpu, Draws(2), 2)
    result = work.run()
    assert tuple(result.shape) == (256, 512)
    work = probe.make(gpu, Draws(2), 4)
    result = work.run()
    assert tuple(result.shape) == (512, 512)
    result[:, 5] ^= 4
    wrong = work.judge(result)
    assert (wrong.count, wrong.places.numel()) == (512, judge.MAX_LOCATED_ROWS)
    assert set((wrong.places % 512).tolist()) == {5}


def test_a_tiny_result_in_the_place_of_zero_is_wrong() -> None:
    """Divided by its powers of two it is zero, and so would it be where numbers are flushed."""
    rows, columns = torch.tensor([[2.0**30]]), torch.tensor([[2.0**30, 1.0]])
    tiny = torch.tensor([[2.0**-126, 0.0]])
    whole, bad = judge.integers_of(tiny, rows, columns)
    assert (whole.tolist(), bad.tolist()) == ([[0, 0]], [[True, False]])
    for wrong in (float("inf"), float("-inf"), float("nan"), 2.0**100):
        assert judge.integers_of(torch.tensor([[wrong]]), torch.ones(1, 1), torch.ones(1, 1))[
            1
        ].all()


def test_switches_of_partial_sums_are_as_before(gpu) -> None:
    from portagpu.train.exact import products

    switches = torch.backends.cuda.matmul
    before = switches.allow_bf16_reduced_precision_reduction
    precision = torch.get_float32_matmul_precision()
    try:
        switches.allow_bf16_reduced_precision_reduction = True
        torch.set_float32_matmul_precision("high")
        with pytest.raises(KeyError), products.exact_arithmetic(gpu):
            assert not switches.allow_bf16_reduced_precision_reduction
            assert torch.get_float32_matmul_precision() == "highest"
            raise KeyError
        assert switches.allow_bf16_reduced_precision_reduction
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        switches.allow_bf16_reduced_precision_reduction = before
        torch.set_float32_matmul_precision(precision)


def native_fp8(gpu: portagpu.Backend) -> Any:
    """A device like this one that states instructions for fp8."""
    from types import SimpleNamespace

    from portagpu.devices.precision import Support

    table = dict.fromkeys(
        (getattr(torch, f"float8_{each}") for each in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")),
        Support.NATIVE,
    )
    precision = replace(gpu.precision, table={**gpu.precision.table, **table})
    switch = gpu.set_float32_precision
    return SimpleNamespace(
        name="other", device=gpu.device, precision=precision, set_float32_precision=switch
    )


def test_fp8_is_judged_where_a_device_states_it(gpu) -> None:
    device = native_fp8(gpu)
    probes = [each for each in HERE if each.dtype.startswith("float8")]
    assert len(probes) == 26
    for probe in probes:
        assert probe.refuses(gpu) == f"the cpu backend has no instructions for {probe.dtype}"
        if probe.refuses(device):
            continue  # a CPU with which oneDNN refuses fp8
        work = probe.make(device, Draws(5), 1)
        result = work.run()
        assert work.judge(result) is None, probe.name
        wrong = work.judge(changed(result, 99, "nan"))
        assert (wrong.count, wrong.places.tolist()) == (1, [99]), probe.name


def test_a_device_without_a_product_says_so_in_one_line(gpu, monkeypatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise NotImplementedError("no kernel for\nthis device")

    device = native_fp8(gpu)
    for name in ("_int_mm", "_scaled_mm"):
        monkeypatch.setattr(torch, name, refuses)
    tried = [each for each in HERE if each.name.startswith(("products/int8[s", "products/float8"))]
    for probe in tried:
        said = probe.refuses(device)
        assert said.startswith(f"torch has no product of {probe.dtype} with results in ")
        assert said.endswith(" here: no kernel for")
    assert len(tried) == 27


def test_full_int8_is_refused_where_its_sums_saturate(gpu) -> None:
    other = native_fp8(gpu)
    other.precision = replace(gpu.precision, saturates=frozenset({torch.int8}))
    refused = {each.name: each.refuses(other) for each in HERE if each.dtype == "int8"}
    assert (
        refused.pop("products/int8[full]")
        == "sums of two int8 products saturate on the other backend"
    )
    assert not any(value for name, value in refused.items() if name.startswith("products/"))


def test_no_float64_is_needed_for_what_is_not_float64(gpu) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoFloat64(TorchDispatchMode):
        """A device that has no float64."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            for each in found if isinstance(found, tuple) else (found,):
                assert getattr(each, "dtype", None) is not torch.float64, func
            return found

    tried = 0
    for probe in HERE:
        if probe.area not in ("products", "convolution", "attention") or probe.dtype == "float64":
            continue
        with NoFloat64():
            if probe.refuses(gpu):
                continue
            work = probe.make(gpu, Draws(6), 1)
            result = work.run()
            assert work.judge(result) is None
            wrong = work.judge(changed(result, 17, "nan"))
        assert wrong.places.tolist() == [17]
        tried += 1
    assert tried > 30


def broken(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("out of memory")


def test_memory_that_runs_out_is_no_refusal(gpu, monkeypatch) -> None:
    monkeypatch.setattr(torch, "_int_mm", broken)
    (probe,) = [each for each in HERE if each.name == "products/int8[square]"]
    with pytest.raises(torch.OutOfMemoryError):
        probe.refuses(gpu)


def test_a_wrong_tile_is_found_whole(gpu) -> None:
    (probe,) = [each for each in HERE if each.name == "products/float32[square]"]
    work = probe.make(gpu, Draws(2), 1)
    result = work.run()
    result[64:80, 32:48] *= -1
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


@pytest.mark.parametrize("name", ["add", "mul", "maximum"])
def test_a_fault_of_negative_zeros_is_found(gpu: portagpu.Backend, name: str) -> None:
    def strike(result: Any, tensors: list[Any], generator: random.Random) -> None:
        words = words_of(result)
        for each in tensors:
            if each.dtype is torch.bfloat16 and each.shape == result.shape:
                words[words_of(each.contiguous()) == -(1 << 15)] ^= 1

    (probe,) = [each for each in PROBES if each.name == f"vectors/bfloat16[{name}]"]
    work = probe.make(gpu, Draws(5), 1)
    with installed(Fault("negative zeros", "vector", strike)) as state:
        result = work.run()
    assert state.corrupted > 0
    wrong = work.judge(result)
    assert wrong is not None
    assert wrong.count == state.corrupted


def test_an_inverted_result_is_wrong_in_every_element() -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool):
        right = torch.arange(12).reshape(3, 4).to(dtype)
        # a view with another order of its memory, too
        for made in (right.clone(), right.t().contiguous().t()):
            judge.complement(made)
            wrong = judge.differences(made, right)
            assert wrong is not None
            assert wrong.count == 12
            judge.complement(made)
            assert judge.differences(made, right) is None
