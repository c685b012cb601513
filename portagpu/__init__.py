"""One import for training code on NVIDIA, AMD and CPU.

What one calls::

    gpu = pg.backend()             the device of this process, opened; .device is torch's
    pg.supports("graphs")          whether it can do that; else the call raises Unsupported
    pg.synchronize(), pg.Event(), pg.Stream(), pg.memory_allocated(), ...
                                   the names of torch.cuda, on every device
    pg.autocast(), pg.GradScaler() mixed precision
    pg.is_oom(error)               whether memory is exhausted
    pg.parallel, pg.planning, pg.profiler, pg.screen
                                   parallel training, its memory, traces, silent corruption

``portagpu --help`` lists the commands, and ``portagpu docs start-train`` prints the first page.

Importing this package imports neither torch nor a vendor's package and opens no device: every name
is loaded from its module on first use and kept. ``__init__.pyi`` lists them.
"""

from __future__ import annotations

import sys

from portagpu._version import __version__ as __version__
from portagpu.base.lazy import lazy_names

TYPE_CHECKING = False  # importing typing would be nearly all of the time of this import
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def _leave_working_folder_out() -> None:
    """Take off the path what ``python -m portagpu...`` alone has put there: the working folder.

    A file in it, which may be an untrusted recording, would stand in for a module. It stays where
    this package was imported from it, and in every other program.
    """
    import os

    # while the module is looked for, "-m" stands where its name stood
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:
        return
    named = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    try:
        here = os.getcwd()  # noqa: PTH109 - importing pathlib is most of this package's import
    except FileNotFoundError:
        return
    from_here = __file__ == os.path.join(here, __name__, "__init__.py")  # noqa: PTH118 - as above
    if named.partition(".")[0] == __name__ and sys.path[:1] == [here] and not from_here:
        del sys.path[0]


class _OldNames:
    """Finds the modules that contract 1.x names; it stands last, after the names of today."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        from portagpu._moved import find_spec

        return find_spec(name)


_leave_working_folder_out()
# once, even where this module is loaded again
sys.meta_path[:] = [each for each in sys.meta_path if getattr(each, "__module__", "") != __name__]
sys.meta_path.append(_OldNames)
__all__, __getattr__, __dir__ = lazy_names(__spec__)
__all__.append("__version__")
