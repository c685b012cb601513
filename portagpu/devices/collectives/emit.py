"""Files that a stack reads, from a profile: a tuner's configuration, variables, DDP's buckets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from portagpu.base.units import number, size
from portagpu.devices.collectives.tuner_csv import lines_of, tuner_forms, write_tuner
from portagpu.devices.collectives.tuning import holds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.devices.collectives.buckets import BucketChoice
    from portagpu.devices.collectives.tuning import Profile, Range

ENVIRONMENT_FILE: Final = "environment.sh"
DDP_FILE: Final = "ddp.json"
_COLUMNS: Final = (
    "Columns: collective, bytes from, bytes to, algorithm, protocol, channels, nodes, ranks, "
    "pipelined operations, registered buffers"
)


def files_of(
    profile: Profile, buckets: BucketChoice | None = None
) -> tuple[dict[str, str], list[str]]:
    """The texts by the name of their file, and a sentence for each file that is not written."""
    files: dict[str, str] = {}
    reasons: list[str] = []
    _add_tuner(profile, files, reasons)
    chosen = list(_chosen(profile))
    if any(each.candidate.environment for _, each in chosen):
        files[ENVIRONMENT_FILE] = _environment(profile, chosen)
    else:
        reasons.append(
            f"no {ENVIRONMENT_FILE}: what was chosen needs no variables of {profile.stack.library}"
        )
    if buckets is not None:
        files[DDP_FILE] = _ddp(profile, buckets)
    else:
        reasons.append(f"no {DDP_FILE}: bucket sizes need --params and --backward-ms")
    return files, reasons


def _add_tuner(profile: Profile, files: dict[str, str], reasons: list[str]) -> None:
    library = profile.stack.library
    form = next((each for each in tuner_forms().values() if each.library == library), None)
    if form is None:
        reasons.append(f"no configuration of a tuner: {library} reads none")
        return
    lines = lines_of(profile)
    if not lines:
        reasons.append(
            f"no {form.file}: no algorithm and protocol of {library} was chosen for any size"
        )
        return
    if not holds({"since": form.since}, profile.stack.version or ""):
        reasons.append(
            f"no {form.file}: a tuner of {library} reads it from {form.since} on, this is "
            f"{profile.stack.version}"
        )
        return
    notes = (
        f"For {library} from {form.since} on: {form.variable}=/path/of/this/file",
        *_head(profile),
        *form.remarks,
        _COLUMNS,
    )
    files[form.file] = write_tuner(lines, form, notes)


def _head(profile: Profile) -> tuple[str, ...]:
    return (
        f"Valid for {profile.stack}, on {profile.machine}",
        f"Measured by portagpu {profile.portagpu}, {profile.made}",
    )


def _chosen(profile: Profile) -> Iterator[tuple[str, Range]]:
    """Every range with what it is for, in words."""
    for entry in profile.entries:
        for each in entry.ranges:
            sizes = f"{size(each.low_bytes)} to {size(each.high_bytes)}"
            best = max(point.ratio for point in each.points)
            words = (
                f"{entry.operation} of {sizes} on {entry.ranks} ranks: {each.candidate.name}, "
                f"up to {number(best, 3)} times as fast as the library's own choice"
            )
            yield words, each


def _environment(profile: Profile, chosen: list[tuple[str, Range]]) -> str:
    """Variables hold for every call of a process, so they are set only if all agree."""
    distinct = {tuple(sorted(each.candidate.environment.items())) for _, each in chosen}
    agreed = len(distinct) == 1
    lines = [f"# {each}" for each in _head(profile)]
    if not agreed:
        lines += [
            "# Sizes and operations differ, and a variable holds for all of them: nothing is set.",
            "# Take the lines of what your program mostly calls.",
        ]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for words, each in chosen:
        lines.append(f"# {words}")
        variables = tuple(sorted(each.candidate.environment.items()))
        if agreed and variables in seen:
            continue
        seen.add(variables)
        lines += [f"{'' if agreed else '# '}export {name}={value}" for name, value in variables]
    return "\n".join([*lines, ""])


def _ddp(profile: Profile, buckets: BucketChoice) -> str:
    return (
        json.dumps(
            {
                "bucket_cap_mb": buckets.best.cap_mib,
                "predicted_step_us": buckets.best.step_us,
                "predicted_step_us_of_25_mib": buckets.default.step_us,
                "basis": profile.basis,
            },
            indent=1,
        )
        + "\n"
    )
