"""How many modules of its own each verb loads: for ``--help``, and for its work on a small input.

A verb that loads an engine for one helper, or for the default of an option, shows here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.results.run import Result, Verdict, new_run
from portagpu.subprocesses.start import python_environment
from tests.conftest import ROOT
from tests.support import trace_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNT: Final = """
import json, os, signal, sys
# others' modules are imported once for all forks: none of them counts
import click, importlib.metadata, numpy, pyarrow, rich.console, rich.table, tomllib
import portagpu.cli._group

def is_own(name):
    return name.partition(".")[0].startswith("portagpu")

def loaded(words):
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            signal.alarm(100)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
            code = portagpu.cli.main(words)
            own = sorted(filter(is_own, sys.modules))
            with open(writer, "w") as file:
                json.dump([code, own], file)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        found = json.load(file)
    os.waitpid(child, 0)
    return found

json.dump([loaded(words) for words in json.load(sys.stdin)], sys.stdout)
"""
