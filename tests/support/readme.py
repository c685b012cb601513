"""README.md: its commands, and what it shows below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.conftest import ROOT

TEXT: Final = (ROOT / "README.md").read_text("utf-8")
TRAIN: Final = (ROOT / "docs/start-train.md").read_text("utf-8")
TEST: Final = (ROOT / "docs/start-test.md").read_text("utf-8")
WHY: Final = (ROOT / "docs/why.md").read_text("utf-8")


def shell_blocks() -> list[list[str]]:
    """The commands of each ``sh`` block, split at ``&&``."""
    found = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(found) >= 2, "README.md must show two complete commands as ```sh blocks"
    return [[part.strip() for part in block.replace("\\\n", " ").split("&&")] for block in found]


def section(title: str, text: str = TEXT) -> str:
    """The text under a heading, of README by default, up to the next of that level or above."""
    level = len(title) - len(title.lstrip("#"))
    found = re.search(
        rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"there is no section {title!r}"
    return found[1]


def portagpu(*words: str, cwd: Path, limit_s: int = 120) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("portagpu")
    return subprocess.run(
        [program, *words], cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False
    )


def shown(command: str) -> list[str]:
    """The lines that README shows below a command, without those that are ``...``."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"README.md does not show {command!r}"
    return [line for line in found[1].splitlines() if line and line != "..."]


def timeless(line: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "# s", line)


def assert_in_order(expected: list[str], printed: str) -> None:
    lines = iter([timeless(line) for line in printed.splitlines()])
    for line in expected:
        assert timeless(line) in lines, f"README shows what is not printed there: {line}\n{printed}"


def gates_shown() -> tuple[list[str], list[str]]:
    """The titles of gates below the main job, and the lines of the files that it writes."""
    below = section("## Check this machine").partition("```console\n")[2].partition("```")[0]
    lines = [line for line in below.splitlines() if line and line != "..."]
    titles = [line[13:34].strip() for line in lines if re.search(r"\d s  ", line)]
    assert len(titles) > 3
    return titles, [line for line in lines if line.startswith("wrote")]


def assert_gates(printed: str) -> None:
    """That a bring-up prints these titles and lines. Verdicts and numbers go by the machine."""
    titles, wrote = gates_shown()
    assert_in_order(titles, "\n".join(line[13:34].strip() for line in printed.splitlines()))
    assert_in_order(wrote, printed)


def training_example() -> str:
    """The script ``train.py``."""
    code = re.search(r"^```python\n(.*?)^```", TRAIN, re.MULTILINE | re.DOTALL)
    assert code
    return code[1]


TRAINING_COMMAND: Final = "torchrun --standalone --nproc_per_node=2 train.py"


def assert_trained(printed: str) -> None:
    """That the training's one line is the one that is shown, but for the architecture."""
    assert [line.split()[0::2] for line in shown(TRAINING_COMMAND)] == [["cpu", "Gloo"]]
    assert [line.split()[0::2] for line in printed.splitlines()] == [["cpu", "Gloo"]]
