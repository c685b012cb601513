"""What operators paste of whole machines, and what `portagpu health` has to say of each text.

The texts and the answers are in ``tests/vendor_texts/machines``.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Final

from portagpu.checks.health.engine import health
from portagpu.checks.health.options import HealthOptions
from portagpu.checks.recordings.replay import Recording
from portagpu.cli._health_text import health_text
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import read_text
from portagpu.facts.readings.model import FormatError
from portagpu.runs.results.advice import Action, action_of
from portagpu.runs.results.run import Verdict
from tests.conftest import ROOT
from tests.support.looped import looped

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run

FOLDER: Final = ROOT / "tests/vendor_texts/machines"
TEXTS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    (FOLDER / "texts.toml").read_text(encoding="utf-8")
)


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def judged(path: Path, expect_devices: int | None = None) -> Run:
    return health(HealthOptions(replay=(str(path),), expect_devices=expect_devices))


def said(result: Result) -> str:
    """ "VERDICT id device action" of a result; its action only where it asks for one."""
    action = action_of(result)
    words = [result.verdict, result.id, result.device, None if action is Action.NONE else action]
    return " ".join(str(word) for word in words if word is not None)


def found_in(run: Run) -> list[str]:
    return [said(each) for each in run.results]


def test_every_text_has_its_answer_and_its_source() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(TEXTS)
    assert all(answer["source"] for answer in TEXTS.values())


@looped("name", TEXTS)
def test_a_text_is_judged_as_an_expert_would(name: str) -> None:
    answer = TEXTS[name]
    run = judged(FOLDER / f"{name}.txt")
    every = found_in(run)
    wanted = answer.get("found", [])
    assert [each for each in wanted if each not in every] == [], every
    failed = [each for each in every if each.split()[0] in ("FAIL", "ERROR")]
    assert [each for each in failed if each not in wanted] == []
    if answer.get("quiet"):
        assert [each for each in every if each.startswith("INCONCLUSIVE environment/")] == []
    if answer.get("healthy"):
        assert [said(each) for each in run.results if action_of(each) is not Action.NONE] == []


@looped("name", [name for name, answer in TEXTS.items() if "count" in answer])
def test_the_number_of_devices_is_what_the_driver_serves(name: str) -> None:
    for expected, verdict in TEXTS[name]["count"].items():
        run = judged(FOLDER / f"{name}.txt", int(expected))
        counts = [each for each in run.results if each.id == "identity/count"]
        assert [str(each.verdict) for each in counts] == [verdict], (expected, counts[0].reason)


@looped("name", [name for name, answer in TEXTS.items() if "products" in answer])
def test_a_product_has_its_name_and_no_other_words_of_its_row(name: str) -> None:
    gpus = Recording(FOLDER / f"{name}.txt").inventory().gpus
    assert [gpu.name or "" for gpu in gpus] == TEXTS[name]["products"]
    assert all(gpu.state.temperatures_c.get("gpu", 30.0) > 20 for gpu in gpus)


@looped("name", ["lost-rtx2070-lspci", "rocm-smi-2-of-6", "lost-l40s-lspci"])
def test_a_text_that_is_cut_at_any_line_is_no_whole_machine(name: str, tmp_path: Path) -> None:
    lines = text_of(name).splitlines(keepends=True)
    whole = int(max(TEXTS[name]["count"]))
    for end in range(3, len(lines), 3):
        path = tmp_path / "text.txt"
        path.write_text("".join(lines[:end]), encoding="utf-8")
        run = judged(path, whole)
        tables = sum("NVIDIA-SMI" in line or "System Management" in line for line in lines[:end])
        count = next(each for each in run.results if each.id == "identity/count")
        # lspci alone has them all; as soon as a driver's list begins it is held against it
        assert not tables or count.verdict is not Verdict.PASS, (end, count.reason)


def read_in(text: str) -> tuple[set[object], set[object]]:
    """The GPUs and the events of a text."""
    found = read_text(text)
    gpus = {(one.pci, one.uuid, one.index, one.name) for each in found for one in each.readings}
    return gpus, {(e.code, e.pci, e.device) for each in found for e in each.events}


PASTED = {
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "UTF-16": lambda text: decode_text(text.encode("utf-16")),
    "colours": lambda text: "".join(f"\x1b[0m{each}\x1b[K\n" for each in text.splitlines()),
    "quoted": lambda text: "".join(f"> {each}\n" for each in text.splitlines()),
}
# of these the mark in front of some lines is the case
QUOTED = ("answer-quoted-alone", "log-quoted-in-its-first-line")


@looped("name", TEXTS)
def test_the_form_of_a_paste_changes_nothing(name: str) -> None:
    text = text_of(name)
    as_it_is = read_in(text)
    for form, change in PASTED.items():
        if form != "quoted" or name not in QUOTED:
            assert read_in(change(text)) == as_it_is, form


@looped("name", TEXTS)
def test_a_text_that_ends_anywhere_is_read_or_refused_in_one_line(name: str) -> None:
    lines = text_of(name).splitlines(keepends=True)
    for count in range(1, len(lines)):
        try:
            read_text("".join(lines[:count]))
        except FormatError as error:
            assert "\n" not in str(error)


def test_a_gpu_without_an_address_has_one_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(
        "    Remapped Rows\n"
        "        Uncorrectable Error               : 4\n"
        "        Pending                           : Yes\n",
        encoding="utf-8",
    )
    # github.com/leptonai/gpud/pull/80
    assert health_text(judged(path))[:2] == ["devices:", "  GPU0  GPU0  FAIL  reset"]
