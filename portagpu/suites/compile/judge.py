"""The verdict of machine code, and the job of a compiler that it is the answer to.

Machine code is judged by its own properties and the facts of its architecture.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import is_number
from portagpu.base.errors import LimitExceeded, Unsupported
from portagpu.devices.machine_code import MachineCode
from portagpu.devices.sizing import Occupancy, occupancy_of_code
from portagpu.runs.results.run import Evidence, Result, bounds
from portagpu.runs.results.verdicts import Verdict
from portagpu.train.kernels.plan import OPTIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.machine_code import Compiler, Toolchain, UnitReading
    from portagpu.facts.targets import Target


SUITE: Final = "compile"
AREA: Final = "kernels"
MATRIX_MEASURES: Final = ("matrix", "other matrix")
UNIT_MEASURES: Final = ("unit reads", "other unit reads")
DOES_NOT_SHOW: Final = "whether its results are right, or how fast it is: nothing was executed"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a kernel's machine code, with its expectation (docs/results.md)."""

    name: str
    value: int | None
    unit: str
    expected: Mapping[str, Any] | None

    @property
    def problem(self) -> str:
        """The violated expectation in words; empty if there is none."""
        if self.expected is None or self.value is None:
            return ""
        low, high = bounds(self.expected)
        if (low is None or self.value >= low) and (high is None or self.value <= high):
            return ""
        wanted = f"{low:g}" if low == high else f"{_bound_text(low)} to {_bound_text(high)}"
        return (
            f"{self.name} {self.value} {self.unit}, expected {wanted} ({self.expected['source']})"
        )


def _bound_text(bound: float | None) -> str:
    return "any" if bound is None else f"{bound:g}"


def measures(
    target: Target,
    code: MachineCode,
    *,
    matrix: str | None,
    occupancy: Occupancy | int | None,
    reading: UnitReading | None = None,
) -> list[Measure]:
    """The numbers of ``code``, each with its expectation where the facts give one.

    :param target: the architecture, with its facts
    :param code: what was read of the machine code
    :param matrix: the dtype of a product
    :param occupancy: the kernel's occupancy, None if it is not known
    :param reading: how the kernel reads its hardware unit, None if it does not
    """
    listed = [
        _limit_measure("registers", code.registers, "registers", target, "register.max_per_thread"),
        Measure(
            "spill",
            code.spills,
            code.spill_unit,
            _exactly(0, code.spill_unit, "values stay in registers"),
        ),
        _limit_measure("shared memory", code.shared_bytes, "B", target, OPTIN),
        Measure(
            "wave size",
            code.wave_size,
            "threads",
            _exactly(target.arch.warp_size, "threads", "exec.wave_size_default"),
        ),
        _occupancy_measure(occupancy),
    ]
    if code.scalar_spills is not None:
        kept = _exactly(0, "registers", "scalar values stay in scalar registers")
        listed.append(Measure("scalar spill", code.scalar_spills, "registers", kept))
    if code.stack_bytes is not None:
        none = _exactly(0, "B", "no kernel has arrays in memory of a thread")
        listed.append(Measure("stack", code.stack_bytes, "B", none))
    if matrix is not None:
        listed += _matrix_measures(matrix, target, code.matrix)
    if reading is not None:
        listed += _unit_measures(reading, code.unit_reads)
    return listed


def _code_occupancy(target: Target, code: MachineCode) -> Occupancy | int | None:
    """The kernel's occupancy: 0 if it exceeds a limit, None if it is unknown."""
    if code.threads is None:
        return None
    try:
        return occupancy_of_code(
            target,
            code.threads,
            registers=code.registers,
            accumulators=code.accumulators,
            scalar_registers=code.scalar_registers,
            shared_memory=code.shared_bytes,
            wave_size=code.wave_size,
        )
    except LimitExceeded:
        return 0
    except (Unsupported, ValueError):
        # a fact is missing, or the code is of a wave size or of registers that are not there
        return None


def _occupancy_measure(occupancy: Occupancy | int | None) -> Measure:
    name, unit = "occupancy", "blocks"
    if occupancy is None:
        return Measure(name, None, unit, None)
    source = "exec.occupancy_rule: a unit holds a block"
    least = {"reference": 1, "lower": 0, "upper": None, "unit": unit, "source": source}
    return Measure(name, occupancy if isinstance(occupancy, int) else occupancy.blocks, unit, least)


def _exactly(value: int, unit: str, source: str) -> dict[str, Any]:
    return {"reference": value, "lower": 0, "upper": 0, "unit": unit, "source": source}


def _limit_measure(name: str, value: int, unit: str, target: Target, key: str) -> Measure:
    """A measure whose limit is a fact of the target."""
    limit = target.value(key)
    if not isinstance(limit, int):
        return Measure(name, value, unit, None)
    expected = {"reference": limit, "lower": -1, "upper": 0, "unit": unit, "source": key}
    return Measure(name, value, unit, expected)


def _matrix_measures(dtype: str, target: Target, found: Mapping[str, int]) -> list[Measure]:
    """Measures of matrix instructions: at least one of the facts' pattern, and none of another."""
    key, unit = f"compile.matrix.{dtype}", "instructions"
    pattern = target.value(key)
    if not isinstance(pattern, str):
        return [Measure(MATRIX_MEASURES[0], sum(found.values()), unit, None)]
    right = sum(count for name, count in found.items() if re.fullmatch(pattern, name))
    source = f"{key}: {pattern}"
    least = {"reference": 1, "lower": 0, "upper": None, "unit": unit, "source": source}
    return [
        Measure(MATRIX_MEASURES[0], right, unit, least),
        Measure(MATRIX_MEASURES[1], sum(found.values()) - right, unit, _exactly(0, unit, source)),
    ]


def _unit_measures(reading: UnitReading, found: Mapping[str, int]) -> list[Measure]:
    """Measures of reads of the unit: each of the vendor's registers once, and no other one."""
    unit = "instructions"
    source = f"{', '.join(reading.registers)}: {reading.source}"
    right = sum(min(found.get(name, 0), 1) for name in reading.registers)
    wanted = _exactly(len(reading.registers), unit, source)
    return [
        Measure(UNIT_MEASURES[0], right, unit, wanted),
        Measure(UNIT_MEASURES[1], sum(found.values()) - right, unit, _exactly(0, unit, source)),
    ]


def judge_code(
    name: str,
    target: Target,
    code: MachineCode,
    *,
    matrix: str | None,
    compiler: str,
    duration_s: float,
    extra: Mapping[str, Any],
    reading: UnitReading | None = None,
) -> Result:
    """PASS if all measures are as expected, FAIL with the reason if one is not.

    UNVERIFIED if the facts state no expectation for one of them.
    """
    occupancy = _code_occupancy(target, code)
    listed = measures(target, code, matrix=matrix, occupancy=occupancy, reading=reading)
    problems = [each.problem for each in listed if each.problem]
    for names, found in ((MATRIX_MEASURES, code.matrix), (UNIT_MEASURES, code.unit_reads)):
        if found and any(each.problem for each in listed if each.name in names):
            problems.append(f"the code has {', '.join(sorted(found))}")
    unknown = [each.name for each in listed if each.expected is None]
    verdict, reason = Verdict.PASS, ""
    if problems:
        verdict, reason = Verdict.FAIL, "; ".join(problems)
    elif unknown:
        verdict = Verdict.UNVERIFIED
        reason = f"{target.arch} states nothing to judge {', '.join(unknown)} by"
    registers = listed[0]
    return Result(
        id=f"{AREA}/{name}",
        suite=SUITE,
        area=AREA,
        device=target.arch.name,
        verdict=verdict,
        reason=reason,
        evidence=(Evidence.COMPILED,),
        value=registers.value,
        unit=registers.unit,
        expected=registers.expected,
        does_not_show=DOES_NOT_SHOW,
        duration_s=duration_s,
        extra={
            **extra,
            "compiler": compiler,
            "matrix": dict(code.matrix),
            "code": asdict(code),
            "occupancy": occupancy.fraction if isinstance(occupancy, Occupancy) else occupancy,
            "measures": [
                {"name": m.name, "value": m.value, "unit": m.unit, "expected": m.expected}
                for m in listed
            ],
        },
    )


def unjudged_result(
    name: str, target: Target, verdict: Verdict, reason: str, *, duration_s: float = 0.0
) -> Result:
    """A result without machine code: skipped, not built, or not compiled."""
    return Result(
        id=f"{AREA}/{name}",
        suite=SUITE,
        area=AREA,
        device=target.arch.name,
        verdict=verdict,
        reason=reason,
        duration_s=duration_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source for one architecture.

    ``ids`` maps each function that the code must contain to its result id. ``request`` is what the
    worker reads; ``key`` is a digest of everything that its answer depends on. ``matrix`` is the
    dtype that the matrix unit must compute in, ``reading`` what must read the hardware unit.
    """

    name: str
    target: Target
    compiler: Compiler
    request: Mapping[str, Any]
    key: str
    ids: Mapping[str, str]
    matrix: str | None = None
    reading: UnitReading | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def codes(self, given: Mapping[str, Any] | None) -> dict[str, MachineCode] | None:
        """The machine code of each function; None if an answer or cache entry has another form."""
        stated = None if given is None else given.get("codes")
        if not isinstance(stated, dict) or set(stated) != set(self.ids):
            return None
        read = {}
        for name, each in stated.items():
            if (code := MachineCode.from_json(each)) is None:
                return None
            read[name] = code
        return read

    def results(self, given: Mapping[str, Any], *, cached: bool) -> list[Result]:
        """The results of an answer, in the order of ``ids``."""
        seconds = given.get("seconds")
        timed = isinstance(seconds, int | float) and is_number(seconds) and not cached
        duration_s = max(0.0, float(seconds or 0)) if timed else 0.0
        each_s = duration_s / len(self.ids)
        codes = self.codes(given)
        if codes is None:
            # FAIL if the kernel does not compile, ERROR if the compiler died
            unread = given.get("unread", True)
            verdict = Verdict.ERROR if unread else Verdict.FAIL
            said = "" if unread else f"{self.compiler} did not compile it: "
            reason = f"{said}{given.get('problem') or self._mismatch(given)}"
            return [
                unjudged_result(name, self.target, verdict, reason, duration_s=each_s)
                for name in self.ids.values()
            ]
        return [
            judge_code(
                name,
                self.target,
                codes[function],
                matrix=self.matrix,
                reading=self.reading,
                compiler=str(self.compiler),
                duration_s=each_s,
                extra={"cached": cached, **self.extra},
            )
            for function, name in self.ids.items()
        ]

    def _mismatch(self, given: Mapping[str, Any]) -> str:
        codes = given.get("codes")
        held = ", ".join(sorted(codes)) if isinstance(codes, dict) and codes else "nothing"
        return f"the code holds {held}, and not {', '.join(sorted(self.ids))}"


def module_source(module: str) -> str:
    """The source text of a module, without importing it: a kernel's module imports triton."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return Path(spec.origin).read_text("utf-8", "replace")


def reader_sources(toolchain: Toolchain) -> list[str]:
    """The source texts of the reader of a vendor's machine code: its module and siblings."""
    module = sys.modules[type(toolchain).__module__]
    if module.__file__ is None:
        return []
    file = Path(module.__file__)
    files = sorted(file.parent.glob("*.py")) if module.__package__ else [file]
    return [each.read_text("utf-8", "replace") for each in files]
