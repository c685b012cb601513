"""Importing the package is free: it loads nothing, opens nothing, and a fork afterwards is safe."""

from __future__ import annotations

import textwrap

import pytest

from portagpu.base.plugins import install
from tests.process.test_import import NO_TORCH, child


@pytest.mark.torch
def test_a_fork_after_asking_for_statuses_can_open_a_device():
    pytest.importorskip("torch")
    done = child(
        """
        import os, threading
        from portagpu.devices.registry import statuses
        assert statuses()["cpu"].usable
        pid = os.fork()
        if pid == 0:
            import portagpu as pg
            os._exit(0 if pg.backend("cpu").device.type == "cpu" else 3)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        import sys
        assert "torch" not in sys.modules, "stating the status imported torch"
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "pg.backend()",
        "pg.device()",
        "pg.device('cuda:0')",
        "pg.set_device(0)",
        "pg.set_device(-1)",
        "pg.manual_seed(0)",
        "pg.autocast()",
        "pg.GradScaler()",
        "pg.Event()",
        "pg.synchronize()",
        "pg.device_count()",
        "pg.max_memory_allocated()",
        "__import__('portagpu.runs.world').runs.world.Ranks().start()",
    ],
)
def test_without_torch_one_line_says_what_to_install(call):
    done = child(
        NO_TORCH
        + textwrap.dedent(
            f"""
            import portagpu as pg
            assert pg.is_available() is False, "a device without torch"
            try:
                {call}
            except pg.MissingDependency as error:
                print(error)
            """
        )
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1, f"not one line: {done.stdout!r}"
    assert install("torch") in lines[0], "it does not say what to install"
    assert "Traceback" not in done.stderr
