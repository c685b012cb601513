"""The committed results, the table that is made from them, and how bring-up comes to a bundle."""

from __future__ import annotations

import hashlib
import sysconfig
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


def test_a_bundle_names_the_code_of_the_wheel_that_measured(
    child: Callable[..., Child], portagpu_wheel: Path, portagpu_installed: Path
) -> None:
    code = (
        "from portagpu.reports.bundles.content import provenance; "
        "print(provenance()['code_sha256'])"
    )
    path = f"{portagpu_installed}:{sysconfig.get_path('purelib')}"
    named = child("-S", "-c", code, environment={"PYTHONPATH": path}).ok().strip()
    with zipfile.ZipFile(portagpu_wheel) as wheel:
        lines = [
            f'"{name}":"{hashlib.sha256(wheel.read(name)).hexdigest()}"'
            for name in sorted(wheel.namelist())
            if name.endswith((".py", ".toml", ".ini"))
        ]
    assert named == hashlib.sha256(f"{{{','.join(lines)}}}".encode()).hexdigest()
    assert len(lines) > 200, "the wheel has code, targets and cases"
