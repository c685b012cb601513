"""One job of a compiler: its request, its cache key, and the results made of its answer."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portagpu.base.documents import is_number
from portagpu.devices.machine_code import MachineCode
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.compile.judge import judge_code, unjudged_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.machine_code import Compiler, Toolchain
    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source for one architecture.

    ``ids`` maps each function that the code must contain to its result id. ``request`` is what the
    worker reads; ``key`` is a digest of everything that its answer depends on. ``matrix`` is the
    dtype that the matrix unit must compute in.
    """

    name: str
    target: Target
    compiler: Compiler
    request: Mapping[str, Any]
    key: str
    ids: Mapping[str, str]
    matrix: str | None = None
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
