"""What installed distributions declare and cannot be used, so that a judgement may be missing."""

from __future__ import annotations

from portagpu.base.errors import TargetError
from portagpu.facts.formats.events import table
from portagpu.facts.formats.foreign_readers import foreign_readers
from portagpu.facts.targets import target_problems, wrong_files
from portagpu.facts.vendors import problems
from portagpu.runs.judges.gpu_health import health_terms


def declaration_problems() -> list[str]:
    """Why targets, vendors, their tables and their readers are left out, one sentence each.

    Reads all that packages declare, which is otherwise done when each is first used. Of this
    distribution's targets it reports what the process has asked for: all were checked at the build.
    """
    try:
        of_targets = [
            f"the targets of {each.entry_point}: {each.reason}" for each in target_problems()
        ]
        of_targets += [f"no target is matched: {each}" for each in wrong_files()]
    except TargetError as error:
        of_targets = [f"no target is matched: {error}"]
    for name in ("kernel_log", "answers"):
        table(name)
    health_terms()
    return [*of_targets, *problems(), *foreign_readers().problems]
