"""What installed distributions declare and cannot be used, so that a judgement may be missing."""

from __future__ import annotations

from portagpu.errors import TargetError
from portagpu.formats.events import table
from portagpu.formats.foreign_readers import foreign_readers
from portagpu.rules.gpu_health import health_terms
from portagpu.target import target_problems, wrong_files
from portagpu.vendors import problems


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
