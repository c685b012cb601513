"""``portagpu port rewrite``: what it writes, what it leaves, and what it never touches."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")


import subprocess
import sys
from typing import TYPE_CHECKING

from tests.process.test_port_rewrite import SAMPLES, rewritten

if TYPE_CHECKING:
    from pathlib import Path


def test_many_uses_on_one_line(tmp_path: Path) -> None:
    """A minified file: the time grows with its length, not with its square."""
    path = tmp_path / "a.py"
    path.write_text("x.cuda();" * 2000, encoding="utf-8")
    assert len(rewritten(path).done) == 2000


@pytest.mark.usefixtures("started")
def test_the_package_imports_no_torch() -> None:
    code = (
        "import sys, portagpu.train.port.rewrite, portagpu.train.port.lint as l; "
        f"l.lint([{str(SAMPLES)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
