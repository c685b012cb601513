"""What a number of right results says: the rate of wrong ones that it excludes, in words too."""

from __future__ import annotations

from typing import Final

from portagpu.base.units import count, number

RULE_OF_THREE: Final = 3.0
"""Where none of n is wrong, a rate of 3/n would have shown one with a probability of 95 %: exp(-3)
is 0.0498 (Hanley and Lippman-Hand, JAMA 249, 1983)."""
REPEATS: Final = 100
"""How often the operands of a wrong result are run again."""


def excluded_rate(results: int) -> float | None:
    """The rate of wrong results that this many right ones exclude at 95 %; None below three."""
    return RULE_OF_THREE / results if results >= RULE_OF_THREE else None


def judged_in_words(results: int, inputs: int) -> str:
    """ "65,536 results of 131,072 inputs, none wrong: a rate above 4.6e-05 ... is excluded"."""
    said = f"{number(results, 12)} results of {number(inputs, 12)} inputs, none wrong"
    rate = excluded_rate(results)
    if rate is None:
        return said
    return f"{said}: a rate above {rate:.2g} on such inputs is excluded at 95 %"


def recurrence(wrong: int, runs: int) -> str:
    """ "permanent", "intermittent" or "gone": whether the same operands go wrong again."""
    if not runs:
        return "not repeated"
    if not wrong:
        return "gone"
    return "permanent" if wrong == runs else "intermittent"


def recurrence_in_words(wrong: int, runs: int) -> str:
    """ "intermittent: wrong in 7 of 100 repetitions of the same operands"."""
    kind = recurrence(wrong, runs)
    if not runs:
        return "the operands were not run again"
    return f"{kind}: wrong in {wrong} of {count(runs, 'repetition')} of the same operands"
