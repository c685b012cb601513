"""The record of ``portagpu compile --all`` that is committed as ``matrix/compiled.json``.

``python -m portagpu.suites.compile.record RESULT`` prints the record of a result. A record has the
properties of each kernel's machine code; reading one judges them again by the present facts.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    DocumentError,
    anything,
    day,
    matching,
    object_of,
    values_of,
    version,
)
from portagpu.base.errors import BundleError, PortagpuError
from portagpu.base.files import read_bounded
from portagpu.base.redact.scrub import find_identifying
from portagpu.base.text import one_line
from portagpu.devices.machine_code import TRITON, MachineCode
from portagpu.runs.results.run import Run, read_json
from portagpu.runs.results.verdicts import Verdict, fold
from portagpu.suites.compile import kernel_jobs
from portagpu.suites.compile.judge import judge_code
from portagpu.suites.compile.run import CompileOptions
from portagpu.train.kernels.cpp.sources import KERNELS
from portagpu.train.kernels.plan import VARIANTS, variants_by_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from portagpu.devices.machine_code import Toolchain
    from portagpu.facts.targets import Target

SCHEMA: Final = "portagpu.compiled/1"
_HEAD: Final = ("schema", "portagpu", "day")
_COMMAND: Final = "python -m portagpu.suites.compile.record RESULT"
_MAX_BYTES: Final = 4 << 20
"""All kernels for 17 architectures are 0.12 MB."""
_VERSION: Final = r"[0-9][A-Za-z0-9_.+!-]*"
_COMPILER: Final = re.compile(rf"([A-Za-z]+) {_VERSION}")
_RECORD: Final = object_of(
    {
        "schema": version(SCHEMA),
        "portagpu": matching(_VERSION, "a version"),
        "day": day,
        "architectures": values_of(values_of(anything)),
    }
)
_AREA: Final = "kernels/"
_SKIPPED: Final = frozenset({str(Verdict.SKIP)})
_OPEN: Final = frozenset({str(Verdict.FAIL), str(Verdict.ERROR), str(Verdict.INCONCLUSIVE)})
_BUILT: Final = frozenset({"verdict", "compiler", "code"})
_NOT_BUILT: Final = frozenset({"verdict", "reason"})


def record(run: Run) -> dict[str, Any]:
    """The record of a run; raises BundleError unless it built for every architecture."""
    if run.info.interrupted:
        raise BundleError("the run was interrupted")
    found: dict[str, dict[str, Any]] = {}
    for result in run.results:
        if "code" in result.extra:
            stated = {"compiler": result.extra["compiler"], "code": result.extra["code"]}
        else:
            stated = {"reason": result.reason}
        kernels = found.setdefault(str(result.device), {})
        kernels[result.id.removeprefix(_AREA)] = {"verdict": str(result.verdict), **stated}
    return check_record(
        {
            "schema": SCHEMA,
            "portagpu": run.info.versions["portagpu"],
            "day": run.info.started[:10],
            "architectures": {
                target.arch.name: found.get(target.arch.name, {}) for target in _gpu_targets()
            },
        },
        by_toolchains=True,
    )


def to_text(document: Mapping[str, Any]) -> str:
    """The record as text, one line per kernel."""
    head = [f"  {json.dumps(key)}: {json.dumps(document[key])},\n" for key in _HEAD]
    archs = [
        f"    {json.dumps(name)}: {{\n"
        + ",\n".join(
            f"      {json.dumps(each)}: {json.dumps(row)}" for each, row in kernels.items()
        )
        + "\n    }"
        for name, kernels in document["architectures"].items()
    ]
    body = ",\n".join(archs)
    return "{\n" + "".join(head) + f'  "architectures": {{\n{body}\n  }}\n}}\n'


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file, checked; raises BundleError that begins with the path."""
    try:
        data = read_bounded(path, _MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise BundleError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB")
        document: dict[str, Any] = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: cannot be read: {error}") from error
    try:
        check_record(document)
    except PortagpuError as error:
        raise BundleError(f"{path}: {error}") from error
    # this is also how a key that is there twice shows
    if to_text(document).encode() != data:
        raise BundleError(f"{path}: is not written as it is made; make it again, by {_COMMAND}")
    return document


def check_record(document: Any, *, by_toolchains: bool = False) -> dict[str, Any]:
    """The record itself; raises BundleError unless it has today's kernels and architectures.

    Each verdict has to be the one that the facts give for the stated code. ``by_toolchains`` has
    the vendors' packages say, too, how the code has to read its hardware unit; without them a
    kernel that reads it may be stated as skipped or wrong, and its reads are not judged again.
    """
    try:
        found: dict[str, Any] = _RECORD.read(document, "")
    except DocumentError as error:
        raise BundleError(str(error)) from error
    archs, gpus = found["architectures"], {target.arch.name: target for target in _gpu_targets()}
    if set(archs) != set(gpus):
        raise BundleError("architectures: are not those of the matrix; run portagpu compile --all")
    for name, kernels in archs.items():
        if set(kernels) not in _expected_ids(gpus[name]):
            raise BundleError(
                f"{name}: has other kernels than there are; run portagpu compile --all"
            )
        toolchain = _toolchain(gpus[name]) if by_toolchains else None
        for kernel, row in kernels.items():
            _check_row(f"{name} {kernel}", kernel, row, gpus[name], toolchain)
    for where, kind in find_identifying(document):
        raise BundleError(f"{where}: holds what may identify ({kind})")
    return found


def built(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The kernels that were built, by architecture, of those that earned the badge."""
    return {
        name: [row for row in kernels.values() if "code" in row]
        for name, kernels in document["architectures"].items()
        if fold(Verdict(row["verdict"]) for row in kernels.values()) is Verdict.PASS
    }


def table(document: Mapping[str, Any]) -> str:
    """The architectures that earned the badge, with compilers, as a Markdown table."""
    head = ["architecture", "kernels", "compilers"]
    rows = [head, ["---"] * len(head)]
    for name, kernels in built(document).items():
        compilers = sorted({row["compiler"] for row in kernels}, key=str.lower)
        rows.append([f"`{name}`", str(len(kernels)), ", ".join(compilers)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _gpu_targets() -> list[Target]:
    return [target for target in CompileOptions().targets() if target.vendor != "cpu"]


def _expected_ids(target: Target) -> tuple[set[str], ...]:
    """The sets of ids that one architecture can have; without a compiler a part has one result."""
    cpp = {
        kernel_jobs.result_id(name, each)
        for name, functions in KERNELS.items()
        for each in functions
    }
    routes = target.value("compile.routes") or ()
    triton = [{kernel_jobs.TRITON}]
    if kernel_jobs.TRITON in routes:
        triton.append({variant.id for variant in VARIANTS})
    return tuple(one | other for one in triton for other in (cpp, {kernel_jobs.CPP}))


def _check_row(
    where: str, kernel: str, row: Any, target: Target, toolchain: Toolchain | None
) -> None:
    variant = variants_by_id().get(kernel)
    unjudged = variant is not None and variant.reads_unit and toolchain is None
    if not isinstance(row, dict) or set(row) not in (_BUILT, _NOT_BUILT):
        raise BundleError(f"{where}: is neither code with a compiler nor a verdict with a reason")
    if set(row) == _NOT_BUILT:
        skipped = _is_skipped(kernel, target, toolchain)
        _check_not_built(where, row, skipped=skipped, may_skip=unjudged)
        return
    code = MachineCode.from_json(row["code"])
    compiler = _COMPILER.fullmatch(row["compiler"]) if isinstance(row["compiler"], str) else None
    if code is None or compiler is None or (compiler[1] == TRITON) != (variant is not None):
        raise BundleError(f"{where}: has no machine code of a compiler with its version")
    if not _is_whole(code, target, by_triton=variant is not None):
        raise BundleError(f"{where}: states other measures than there are")
    again = judge_code(
        kernel,
        target,
        code,
        matrix=None if variant is None else variant.matrix,
        reading=(
            None
            if variant is None or toolchain is None
            else kernel_jobs.unit_reading_of(variant, target, toolchain)
        ),
        compiler=row["compiler"],
        duration_s=0.0,
        extra={},
    )
    if row["verdict"] != str(again.verdict) and not (unjudged and row["verdict"] == Verdict.FAIL):
        why = f": {again.reason}" if again.reason else ""
        raise BundleError(f"{where}: is {row['verdict']} where the facts say {again.verdict}{why}")


def _is_whole(code: MachineCode, target: Target, *, by_triton: bool) -> bool:
    """Whether ``code`` has every value that its compiler states; a missing one is not judged."""
    scalars = target.fact("register.max_scalar_per_thread") is not None
    return (
        (code.scalar_registers is not None) == (code.scalar_spills is not None) == scalars
        and (code.stack_bytes is None) == by_triton
        and code.accumulators <= code.registers
    )


def _is_skipped(kernel: str, target: Target, toolchain: Toolchain | None) -> bool:
    """Whether facts say that the kernel, or the part of that name, is not built."""
    if kernel in (kernel_jobs.TRITON, kernel_jobs.CPP):
        return kernel not in (target.value("compile.routes") or ())
    variant = variants_by_id().get(kernel)
    if variant is None:
        return False
    if toolchain is None:
        return bool(variant.why_not(target))
    return bool(kernel_jobs.skip_reason(variant, target, toolchain))


def _toolchain(target: Target) -> Toolchain | None:
    # whoever only reads a record loads no vendor's package
    from portagpu.devices.discovery import toolchain_for

    found = toolchain_for(target.vendor)
    return None if found is None else found[1]


def _check_not_built(where: str, row: Mapping[str, Any], *, skipped: bool, may_skip: bool) -> None:
    """Check a kernel that was not built: never a PASS, and SKIP exactly if a fact says so.

    ``may_skip`` is for what facts do not say.
    """
    allowed = _SKIPPED if skipped else _OPEN | _SKIPPED if may_skip else _OPEN
    stated = all(isinstance(each, str) and each for each in row.values())
    if not stated or row["verdict"] not in allowed:
        raise BundleError(f"{where}: is {row['verdict']} without having been built")


def main(words: list[str]) -> int:
    """Print a record; 0, 1 with what is wrong in one line, or 2 (usage)."""
    if len(words) != 1 or words[0].startswith("-"):
        print(f"usage: {_COMMAND}", file=sys.stderr)
        return 2
    try:
        print(to_text(record(read_json(words[0]))), end="")
    except (OSError, PortagpuError) as error:
        print(one_line(str(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
