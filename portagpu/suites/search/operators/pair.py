"""One pair judged: all its samples, forward, spread out, called again, and backward."""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import error_line
from portagpu.suites.search.operators import database
from portagpu.suites.search.operators.calls import (
    CLASSES,
    ELEMENT_TERMS,
    WIDER_INSIDE,
    backward,
    class_of,
    cpu_seeds,
    dtypes,
    forward,
    unit_roundoff,
    unseeded,
)
from portagpu.suites.search.operators.compare import (
    Reference,
    equal_results,
    first_difference,
    same_values,
)
from portagpu.suites.search.operators.database import (
    AGAIN,
    BACKWARD,
    FORWARD,
    SPREAD,
    dtype_name,
    full_name,
    has_backward,
)
from portagpu.suites.search.operators.more import ATTENTION, MORE, more_samples
from portagpu.suites.search.operators.samples import (
    LAYOUTS,
    moved,
    reordered,
    samples,
    seeded,
    shown,
    tensors,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.suites.search.operators.calls import Result
    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample


WORDS: Final = {"spread": SPREAD, "last": "channels last", "offset": "at an offset"}
"""Layouts, as sentences name them."""


@dataclass(slots=True)
class Judged:
    """What became of a pair: its first difference, how many comparisons, and what was set aside."""

    difference: str = ""
    compared: int = 0
    aside: list[str] = field(default_factory=list)
    """"not compared: results are random", "excepted by torch: backward"."""


@dataclass(slots=True)
class _Pair:
    device: Any
    operator: Operator
    dtype: Any
    has: Callable[[Any], bool]
    """Whether the device has tensors of a dtype."""
    half: int | None
    found: Judged = field(default_factory=Judged)
    ran: set[str] = field(default_factory=set)
    """The directions in which a sample ran."""
    own: bool = True
    """Whether torch made this sample for the operator."""
    refused: dict[str, str] = field(default_factory=dict)
    """By direction the first sentence of a sample for which torch has no kernel."""

    def excepted(self, direction: str) -> bool:
        """Whether torch excepts the direction; it is then noted."""
        reason = database.declared(self.operator, direction, self.device.type, self.dtype)
        if self.half == MORE and self.operator.name == ATTENTION:
            # torch excepts it for samples with dropout, which these do not have
            return False
        if reason:
            self.found.aside.append(f"excepted by torch: {direction}")
        return reason

    def judge(self) -> None:
        """Every sample and direction, until one differs."""
        reason = database.own_reason(self.operator, dtype_name(self.dtype))
        if reason:
            self.found.aside.append(f"not compared: {reason}")
            return
        gradient = has_backward(self.operator, self.device.type, self.dtype)
        excepted = {each: self.excepted(each) for each in (FORWARD, SPREAD)}
        excepted[BACKWARD] = gradient and self.excepted(BACKWARD)
        if excepted[FORWARD] and (excepted[BACKWARD] or not gradient):
            if self.operator.name in database.UNINITIALISED:
                self.found.aside.append("not compared: results are uninitialised")
            return
        try:
            every = self._samples(gradient)
        except Exception as error:  # noqa: BLE001 - torch's own, for a build that lacks something
            self.found.aside.append(f"not compared: torch makes no samples ({_kind(error)})")
            return
        for number, sample, own in every:
            if self._lacks(sample):
                continue
            self.own = own
            try:
                self._sample(number, sample, gradient, excepted)
            except NotImplementedError as error:  # from the copy of the sample to the device
                self._raised(number, sample, FORWARD, error)
            if self.found.difference:
                return
        for direction, sentence in self.refused.items():
            if direction in self.ran:
                self.found.aside.append("not compared: torch has kernels for some samples alone")
            else:
                self.found.difference = sentence

    def _samples(self, gradient: bool) -> list[tuple[int, Sample, bool]]:
        if self.half != MORE:
            return samples(self.operator, self.dtype, gradient, self.half)
        found = more_samples(self.operator, self.dtype, gradient)
        return [(number, each, False) for number, each in enumerate(found)]

    def _moved(self, sample: Sample, layout: str = "") -> Sample:
        """The sample on the device, but for what has to stay on the CPU."""
        found = moved(sample, self.device, layout)
        if self.operator.name in database.ON_THE_HOST:
            host = moved(sample, "cpu", layout)
            found.args, found.kwargs = host.args, host.kwargs
        return found

    def _cpu_refuses(self, sample: Sample, direction: str) -> bool:
        """Whether the CPU refuses it as well."""
        try:
            here = moved(sample, "cpu")
            if direction == BACKWARD:
                backward(self.operator, here, self.dtype)
            else:
                forward(self.operator, here)
        except Exception:  # noqa: BLE001 - torch's own
            return True
        return False

    def _refuses(self, sample: Sample, layout: str) -> bool:
        """Whether the operator refuses that layout in float64 on the CPU too, as views do."""
        if layout in ("", "spread"):
            return False
        try:
            forward(self.operator, moved(widened(moved(sample, "cpu"), self.dtype), "cpu", layout))
        except Exception:  # noqa: BLE001 - torch's own
            return True
        return False

    def _sample(
        self, number: int, sample: Sample, gradient: bool, excepted: Mapping[str, bool]
    ) -> None:
        """One sample in all directions that torch does not except."""
        reference = self._reference(sample, gradient=False)
        if reference is None:
            return
        values = self._has_values(reference)
        if not excepted[FORWARD]:
            self._forward(number, sample, reference, values, excepted[SPREAD])
        if not self.found.difference and values and gradient and not excepted[BACKWARD]:
            self._backward(number, sample, excepted[SPREAD])

    def _lacks(self, sample: Sample) -> bool:
        """Whether the sample has a dtype that the device does not have; it is then noted."""
        import torch

        if all(map(self.has, (torch.float64, torch.complex128, torch.int64, torch.bfloat16))):
            return False
        try:
            lacking = sorted(
                dtype_name(each) for each in dtypes(self.operator, sample) if not self.has(each)
            )
        except Exception:  # noqa: BLE001 - without a result on the CPU there is no reference either
            return False
        if lacking:
            self.found.aside.append(f"not compared: the device has no {lacking[0]}")
        return bool(lacking)

    def _forward(
        self, number: int, sample: Sample, reference: Reference, values: bool, no_spread: bool
    ) -> None:
        here = self._moved(sample)
        before = [each.clone() for each in tensors(here)]
        got = self._run(number, sample, here, FORWARD, reference, values)
        if got is None:
            return
        self._inputs_unchanged(number, sample, here, before)
        if self.found.difference:
            return
        if values:
            self._again(number, sample, here, got, reference)
        for layout in LAYOUTS:
            if self.found.difference or no_spread:
                return
            here = self._moved(sample, layout)
            self._run(number, sample, here, WORDS[layout], reference, values, layout)

    def _reference(self, sample: Sample, gradient: bool) -> Reference | None:
        """The right results; None where the wide dtype has none."""
        try:
            wide = widened(moved(sample, "cpu"), self.dtype)
            units = [unit_roundoff(each.dtype) for each in tensors(sample)]
            unit = max([unit_roundoff(self.dtype), *units])
            return Reference(self.operator, wide, self.dtype, unit, gradient, self._plain(sample))
        except Exception as error:  # noqa: BLE001 - whatever torch raises, there is no reference
            what = "gradient" if gradient else "result"
            if self.own:
                self.found.aside.append(f"not compared: no {what} in float64 ({_kind(error)})")
            return None

    def _plain(self, sample: Sample) -> bool:
        rounded = [
            each.dtype
            for each in tensors(sample)
            if each.dtype.is_floating_point or each.dtype.is_complex
        ]
        return self.operator.name not in database.OTHER_WIDTH and {*rounded} <= {self.dtype}

    def _has_values(self, reference: Reference) -> bool:
        """Whether the results are the same with other random numbers."""
        if self.operator.name in database.UNINITIALISED:
            self.found.aside.append("not compared: results are uninitialised")
            return False
        if not reference.drew:
            return True
        with unseeded():
            others = forward(self.operator, reference.sample, seed=2, widened=True)
        if all(same_values(*both) for both in zip(reference.right, others, strict=True)):
            return True
        self.found.aside.append("not compared: results are random")
        return False

    def _run(
        self,
        number: int,
        sample: Sample,
        here: Sample,
        direction: str,
        reference: Reference,
        values: bool,
        layout: str = "",
    ) -> list[Result] | None:
        """The results on the device; None if there is a difference, which is then noted."""
        try:
            got = forward(self.operator, here)
        except Exception as error:  # noqa: BLE001 - whatever a device raises is what it did
            if self._refuses(sample, layout):
                return None
            self._raised(number, sample, direction, error)
            return None
        return got if self._compare(number, sample, got, direction, reference, values) else None

    def _compare(
        self,
        number: int,
        sample: Sample,
        got: list[Result],
        direction: str,
        reference: Reference,
        values: bool,
        asked: list[int] | None = None,
        layout: str = "",
    ) -> bool:
        """Whether the results are right; of gradients those that were ``asked``."""
        kind = CLASSES[class_of(self.operator)]
        sizes = [each.numel() for each in reference.right if hasattr(each, "numel")]
        terms = kind.terms(self.operator, reference.sample, max(sizes, default=1))
        if self.operator.name in WIDER_INSIDE and self.dtype.itemsize == 2:
            terms = ELEMENT_TERMS
        each = kind.each
        if direction == BACKWARD:
            of = "the gradient of input"
            asked = asked or []
            names = [f"{of} {k}" if k in asked else "" for k in range(len(reference.right))]
            direction += f", {WORDS[layout]}" if layout else ""
            direction += f" (of input {asked[0]} alone)" if len(asked) == 1 < len(names) else ""
            terms = CLASSES["other"].terms(self.operator, reference.sample, 1) + 2 * terms
            each = False
        else:
            several = len(reference.right) > 1
            names = [
                f"result {k}" if several else "the result" for k in range(len(reference.right))
            ]
        whole = not (self.dtype.is_floating_point or self.dtype.is_complex)
        if whole and self.operator.name in database.TIES:
            self.found.aside.append("not compared: which of equal values an index names")
            names[len(names) > 1 :] = [""] * len(names[len(names) > 1 :])
        self.found.compared += 1
        self.ran.add(direction.partition(",")[0])
        found = first_difference(got, reference, terms, each, names, values)
        if found:
            self._tell(number, sample, direction, found)
        return not found

    def _inputs_unchanged(self, number: int, sample: Sample, here: Sample, before: Any) -> None:
        """An operator that changes its inputs on the CPU does so by its nature."""
        changed = [
            k
            for k, (one, other) in enumerate(zip(tensors(here), before, strict=True))
            if not same_values(one, other)
        ]
        if not changed or self.operator.name in database.WRITES:
            return
        right = moved(sample, "cpu")
        start = [each.clone() for each in tensors(right)]
        wide = widened(right, self.dtype)
        forward(self.operator, wide, widened=True)
        if all(
            same_values(one.to(other.dtype), other)
            for one, other in zip(tensors(wide), start, strict=True)
        ):
            self._tell(number, sample, FORWARD, f"the call changed its input {changed[0]}")

    def _again(
        self, number: int, sample: Sample, here: Sample, got: Any, reference: Reference
    ) -> None:
        """The second call gives what the first gave, unless torch promises no such thing."""
        import torch

        with suppress(Exception):
            # of other numbers: what is left of them is seen in the next call
            forward(self.operator, reordered(here, self.dtype))
        try:
            again = forward(self.operator, here)
        except Exception as error:  # noqa: BLE001 - whatever a device raises is what it did
            self._raised(number, sample, AGAIN, error)
            return
        if len(got) == len(again) and all(
            equal_results(*both) for both in zip(got, again, strict=True)
        ):
            self.found.compared += 1
            return
        if not self._compare(number, sample, again, AGAIN, reference, values=True):
            return
        if self.operator.name in database.UNWRITTEN:
            self.found.aside.append("not compared: second call starts from unwritten memory")
            return
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            both = [forward(self.operator, self._moved(sample)) for _ in range(2)]
        finally:
            torch.use_deterministic_algorithms(before)
        if (
            all(same_values(*each) for each in zip(*both, strict=True))
            and self.device.type != "cpu"
        ):
            self.found.aside.append("not compared: second call is not deterministic")
            return
        self._tell(number, sample, AGAIN, "its result is not that of the first")

    def _backward(self, number: int, sample: Sample, no_spread: bool) -> None:
        reference = self._reference(sample, gradient=True)
        if reference is None:
            return
        for layout in ("",) if no_spread else ("", *LAYOUTS):
            if layout == "spread":
                with suppress(Exception):
                    other = self._moved(reordered(sample, self.dtype))
                    backward(self.operator, other, self.dtype)
            here = self._moved(sample, layout)
            asked = self._asked(number, here, layout)
            try:
                got = backward(
                    self.operator, here, self.dtype, layout=self._incoming(layout, number)
                )
            except Exception as error:  # noqa: BLE001 - whatever a device raises is what it did
                if self._refuses(sample, layout):
                    continue
                self._raised(number, sample, BACKWARD, error)
                return
            if not got and len(asked) < len(reference.right):
                # no result depends on what was asked
                continue
            if len(got) == len(asked) < len(reference.right):
                some = dict(zip(asked, got, strict=True))
                got = [some.get(k, right) for k, right in enumerate(reference.right)]
            if not self._compare(number, sample, got, BACKWARD, reference, True, asked, layout):
                return

    @staticmethod
    def _incoming(layout: str, number: int) -> str:
        """How the gradient lies that comes in, for inputs of that layout: as they do, or not.

        It has no offset: torch views that of some operators as complex numbers, which it refuses
        there.
        """
        if layout in ("", "last"):
            return ("last", "")[number % 2]
        return "" if layout == "offset" else layout

    def _asked(self, number: int, here: Sample, layout: str) -> list[int]:
        """Of which inputs the gradient is asked: of all, of all but one, or of one alone."""
        inputs = [each for each in tensors(here) if each.requires_grad]
        every = list(range(len(inputs)))
        asked = every
        if layout == "offset":
            asked = [every[number % len(every)]] if every else every
        elif layout == "last" and len(every) > 1:
            asked = [each for each in every if each != (number + 1) % (len(every) + 1)]
            if self.device.type == "cpu" and self.operator.name in database.KILLS:
                self.found.aside.append(
                    "not compared: the gradient ends the process, as torch has it"
                )
                asked = every
        for k, each in enumerate(inputs):
            each.requires_grad_(k in asked)
        return asked

    def _raised(self, number: int, sample: Sample, direction: str, error: Exception) -> None:
        """An error is a difference.

        Torch declares a dtype where one sample runs: others may lack a kernel (``test_dtypes`` in
        its test/test_ops.py: dtypes that "worked on some samples").
        """
        if not self.own and self.device.type != "cpu" and self._cpu_refuses(sample, direction):
            return
        what = f"it raised {error_line(error)}"
        missing = self._not_claimed(error)
        if missing:
            self.found.aside.append(f"not compared: {missing}")
        elif isinstance(error, NotImplementedError) and "not implemented for" in what:
            self.refused.setdefault(direction, self._sentence(number, sample, direction, what))
        else:
            self._tell(number, sample, direction, what)

    def _not_claimed(self, error: Exception) -> str:
        """What the device does not claim, where the error is about that; else empty.

        Some operators compute in float64 inside, whatever their inputs are. A type of device that
        torch's database does not know has the kernels that it has.
        """
        import torch

        text = str(error)
        for dtype, word in ((torch.float64, "Double"), (torch.complex128, "ComplexDouble")):
            if not self.has(dtype) and re.search(rf"\b({word}|{dtype_name(dtype)})\b", text):
                return f"torch computes it in {dtype_name(dtype)}, which the device does not have"
        column = f"dtypesif{self.device.type}"
        known = any(name.lower() == column for name in vars(self.operator))
        if not (known or self.device.type == "cpu") and isinstance(error, NotImplementedError):
            return f"torch has no kernel of it for {self.device.type}"
        return ""

    def _tell(self, number: int, sample: Sample, direction: str, what: str) -> None:
        self.found.difference = self._sentence(number, sample, direction, what)

    def _sentence(self, number: int, sample: Sample, direction: str, what: str) -> str:
        name = f"{full_name(self.operator)} in {dtype_name(self.dtype)}"
        return f"{name}, sample {number} ({shown(sample)}), {direction}: {what}"


def judge(
    device: Any,
    operator: Operator,
    dtype: Any,
    has: Callable[[Any], bool] = lambda _: True,
    half: int | None = None,
) -> Judged:
    """What became of the pair on that device, which ``has`` tensors of these dtypes.

    With ``half`` every second of its samples runs.
    """
    pair = _Pair(device, operator, dtype, has, half)
    with seeded(0), cpu_seeds() if device.type == "cpu" else nullcontext():
        pair.judge()
    return pair.found


def _kind(error: Exception) -> str:
    return type(error).__name__
