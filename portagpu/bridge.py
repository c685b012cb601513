"""``import portagpu.bridge`` in the first line of a script runs it, unchanged, on this backend.

torch's names of one vendor's GPUs answer with portagpu's for the process, and a report at its end
says which lines asked. ``portagpu port run SCRIPT`` does it without a change of the script. It is
refused where torch's own GPU build works, and does nothing in a library, whose users would get it
unasked.
"""

from __future__ import annotations

import sys

from portagpu.train.port.bridge import activate, report

__all__ = ["report"]


def _importer() -> str:
    """The name of the module that imports this one."""
    frame = sys._getframe(1)
    while frame is not None and (
        frame.f_globals.get("__name__") == __name__ or "importlib" in frame.f_code.co_filename
    ):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else str(frame.f_globals.get("__name__"))


if _importer() in ("__main__", "__mp_main__"):
    activate()
else:
    sys.stderr.write(
        f"portagpu.bridge is for scripts and does nothing in {_importer()}: import it in the first "
        "line of the program\n"
    )
