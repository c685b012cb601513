"""Torch's own operators, over the samples of its own database."""

from portagpu.suites.conformance import Search, case


@case(
    "operators/samples",
    spec="Each operator and dtype that torch declares gives what float64 on the CPU gives.",
    outcome="bounded: growth(n, u) (S + |y|), n and S by class of operators",
    params={"kind": ("elementwise", "movement", "reductions", "linalg", "nn", "other")},
    search=Search("operators-{kind}", seconds=2),
    does_not_show="values beyond those of torch's samples, and operators that torch does not list",
)
def test_samples(search, kind):
    search()
