"""Runs when Python starts: reports what is executed from a watched folder, or could be.

``WATCHED`` is that folder, and ``WATCH_LOG`` a file that gets a line for each: code from the folder
that is compiled or executed, an import for which the folder is on the path, a library or a program
of the folder, and a child whose variables lead to it. Children in Python report too, because
their path has this file's folder.
"""

import os
import sys

folder = os.path.realpath(os.environ["WATCHED"])
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")


_within = {}


def _is_within(place, here=None):
    """Whether a path is the folder or below it, seen from the working folder ``here``."""
    # pathlib would be imported before the watch begins, and is slow
    whole = os.path.join(here or os.getcwd(), os.fsdecode(place))  # noqa: PTH109, PTH118
    if whole not in _within:
        _within[whole] = f"{os.path.realpath(whole)}/".startswith(f"{folder}/")
    return _within[whole]


def _report(event, what):
    line = f"{event}: {what}\n".encode()
    log = os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, line)
    os.close(log)


def _program(event, name, variables, here):
    name = os.fsdecode(name)
    given = {
        os.fsdecode(key): os.fsdecode(value)
        for key, value in (os.environ if variables is None else variables).items()
    }
    if "/" in name:
        if _is_within(name, here):
            _report(event, name)
    elif any(_is_within(each, here) for each in given.get("PATH", "").split(":")):
        _report(event, f"{name} in PATH={given.get('PATH')}")
    for key in _PATHS:
        entries = given[key].split(":") if key in given else ()
        # names without a slash are searched in the paths of the others
        places = [each for each in entries if "/" in each or key not in ("LD_PRELOAD", "LD_AUDIT")]
        if any(_is_within(each, here) for each in places):
            _report(event, f"{name} under {key}={given[key]}")


def _watch(event, args):
    try:
        if event == "exec":
            name = getattr(args[0], "co_filename", "")
            if name[:1] != "<" and _is_within(name):
                _report(event, name)
        elif event == "compile":
            name = args[1]
            if name and os.fsdecode(name)[:1] != "<" and _is_within(name):
                _report(event, os.fsdecode(name))
        elif event == "import":
            if args[2] is not None and any(_is_within(each) for each in args[2]):
                _report(event, args[0])
            if args[1] and _is_within(args[1]):
                _report(event, args[1])
        elif event == "ctypes.dlopen":
            if args[0] and "/" in os.fsdecode(args[0]) and _is_within(args[0]):
                _report(event, args[0])
        elif event == "subprocess.Popen":
            _program(event, args[0], args[3], args[2])
        elif event in ("os.exec", "os.posix_spawn"):
            _program(event, args[0], args[2], None)
        elif event == "os.system":
            _report(event, args[0])
    except FileNotFoundError:
        # the working folder was deleted: it has no files
        pass


sys.addaudithook(_watch)
