"""The line through measured times: known lines, edges, and what is too little."""

from __future__ import annotations

import random

import pytest

from portagpu.devices.collectives.cost import fit_line, percentile

SIZES = [1 << power for power in range(3, 30)]


def test_points_on_a_line_give_it_back():
    found = fit_line("all_reduce", 2, [(x, 25.0 + x * 0.0004) for x in SIZES])
    assert found.alpha_us == pytest.approx(25.0)
    assert found.beta_us_per_byte == pytest.approx(0.0004)
    assert (found.points, found.low_bytes, found.high_bytes) == (27, 8, 1 << 29)
    assert found.error_p50 == pytest.approx(0, abs=1e-9)
    assert found.time_us(10_000) == pytest.approx(29.0)
    assert str(found) == "measured on 27 points, error p50 0%, p95 0%"


def test_small_and_large_sizes_weigh_the_same():
    # 10 % off at both ends: absolute errors would forget the small sizes
    noise = random.Random(7)  # noqa: S311 - no secret
    points = [(x, (40.0 + x * 0.001) * noise.uniform(0.9, 1.1)) for x in SIZES]
    found = fit_line("all_reduce", 2, points)
    assert found.alpha_us == pytest.approx(40.0, rel=0.05)
    assert found.beta_us_per_byte == pytest.approx(0.001, rel=0.05)
    assert 0 < found.error_p50 < found.error_p95 <= 0.11


def test_no_other_line_has_smaller_relative_errors():
    noise = random.Random(11)  # noqa: S311 - no secret
    points = [(x, (7.0 + x * 0.002) * noise.uniform(0.7, 1.4)) for x in SIZES]
    found = fit_line("all_gather", 4, points)

    def error(alpha, beta):
        return sum(((alpha + x * beta - y) / y) ** 2 for x, y in points)

    best = error(found.alpha_us, found.beta_us_per_byte)
    for scale_a in (0.98, 1.0, 1.02):
        for scale_b in (0.98, 1.0, 1.02):
            other = error(found.alpha_us * scale_a, found.beta_us_per_byte * scale_b)
            assert other >= best


@pytest.mark.parametrize(
    ("points", "alpha", "beta"),
    [
        # times that fall with the size would have a negative slope, and the reverse
        ([(8, 50.0), (80, 40.0), (800, 30.0), (8000, 20.0)], "some", "none"),
        ([(1000, 0.1), (2000, 5.0), (3000, 10.0), (4000, 15.0)], "none", "some"),
    ],
)
def test_neither_part_is_negative(points, alpha, beta):
    found = fit_line("all_reduce", 2, points)
    assert found.alpha_us > 0 if alpha == "some" else found.alpha_us == 0
    assert found.beta_us_per_byte > 0 if beta == "some" else found.beta_us_per_byte == 0


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "0 times of 0 sizes"),
        ([(8, 1.0), (16, 1.0), (32, 1.0)], "3 times of 3 sizes"),
        ([(8, 1.0)] * 50 + [(16, 1.0)], "51 times of 2 sizes"),
        ([(8, 1.0), (16, 1.0), (32, 1.0), (64, 0.0)], "(64, 0.0) is not a pair"),
        ([(8, 1.0), (16, 1.0), (32, 1.0), (64, float("nan"))], "(64, nan) is not a pair"),
        ([(8, 1.0), (16, 1.0), (32, 1.0), (0, 5.0)], "(0, 5.0) is not a pair"),
    ],
)
def test_too_little_is_refused_in_one_line(points, said):
    with pytest.raises(ValueError, match=r"^.*$") as raised:
        fit_line("all_reduce", 2, points)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_size_outside_of_the_measured_ones_is_reported():
    found = fit_line("all_reduce", 2, [(x, 25.0 + x) for x in SIZES])
    assert found.remarks(1 << 29) == ()
    assert found.remarks(1 << 30) == ("1 GiB is outside of the measured sizes, 8 B to 512 MiB",)
    assert found.remarks(7)


def test_percentiles_are_of_the_nearest_rank():
    values = [float(x) for x in range(1, 21)]
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [10.0, 19.0, 20.0]
    assert percentile([3.0], 0.5) == 3.0


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([(4**at, at * 1e-99) for at in range(3, 9)], "a time of 3e-99 us is none"),
        ([(4**at, at * 1e99) for at in range(3, 9)], "a time of 3e\\+99 us is none"),
        ([(10**17 + at, 10.0) for at in range(6)], "too close to each other for a line"),
    ],
)
def test_numbers_that_no_line_can_be_fitted_to_are_refused(points, said):
    with pytest.raises(ValueError, match=said):
        fit_line("all_reduce", 2, points)
