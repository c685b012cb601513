"""A text that was cut anywhere is read as one: no number of devices is judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.host.kernel_log import KIND as LOG
from portagpu.facts.formats.reader import read_text
from portagpu.facts.readings.model import FormatError
from portagpu.machine.inventory.join import join
from tests.support.fuzz_formats import RECORDINGS, fixtures, format_modules
from tests.vendor_texts.test_pastes import ROCM, TABLE, listed
from tests.vendor_texts.test_truncated_texts import count_verdict

if TYPE_CHECKING:
    from pathlib import Path


LONG = 20_000


WITHOUT_END = frozenset(
    {
        *("amd_smi_text", "dcgm_exporter", "device_metrics_exporter", "lspci", "mig_profiles"),
        *("nvidia_dmon", "nvidia_gpu_exporter", "nvidia_nvlink", "nvidia_smi_text"),
    }
)
"""Formats that end after any line: of them only a cut inside of a line can be recognised."""


LARGEST = 200_000


def texts() -> list[tuple[str, str]]:
    seeds = [seed for module in format_modules() for seed in fixtures(module)]
    found = [(seed.name, decode_text(seed.data)) for seed in seeds]
    if RECORDINGS.is_dir():
        kinds = [path for path in sorted(RECORDINGS.iterdir()) if path.is_dir()]
        wanted = ("amd-smi", "amdgpu-top", "hwloc-xml", "lspci", "nccl-topo-xml", "nvidia-smi-text",
                  "nvidia-smi-xml", "rocm-smi", "rocminfo")  # fmt: skip
        files = [path for kind in kinds if kind.name in wanted for path in sorted(kind.iterdir())]
        found += [(f"{p.parent.name}/{p.name}", decode_text(p.read_bytes())) for p in files]
    return [(name, text) for name, text in found if len(text) < LARGEST]


def counted(text: str) -> tuple[int, bool]:
    """(GPUs that are listed, whether that is all that there are)."""
    found = read_text(text)
    if all(each.kind == LOG for each in found):
        return 0, False
    machine = join(found)
    return len(machine.gpus), not machine.breaks_off


def test_half_a_value_and_what_is_after_it_are_not_a_fault(tmp_path: Path) -> None:
    links = "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    text = "".join(f"{line}\n{links}" for line in listed(4).splitlines())
    for whole in (text, ROCM):
        for end in range(len(whole) // 2, len(whole), 7):
            (tmp_path / "text").write_text(whole[:end])
            run = bringup(BringupOptions(replay=Recording(tmp_path / "text")))
            failed = [each for each in run.results if str(each.verdict) == "FAIL"]
            # between two lines this output looks whole
            after_a_line = "\n" in (whole[end - 1], whole[end])
            assert after_a_line or not failed, (whole[:end][-30:], failed[0].reason)


@pytest.mark.parametrize("text", [TABLE, ROCM], ids=["nvidia-smi", "rocm-smi"])
def test_no_cut_of_a_table_passes_or_fails_a_count(tmp_path: Path, text: str) -> None:
    lines = text.splitlines(keepends=True)
    assert count_verdict(tmp_path, text, 4) == "PASS"
    assert count_verdict(tmp_path, text, 5) == "FAIL"
    for number in range(1, len(lines)):
        for expected in (1, 2, 3, 8):
            found = count_verdict(tmp_path, "".join(lines[:number]), expected)
            assert found in ("INCONCLUSIVE", None), f"{number} lines, {expected} expected: {found}"


@pytest.mark.parametrize(("name", "text"), texts(), ids=[name for name, _ in texts()])
def test_a_text_that_is_cut_states_no_number_of_devices(name: str, text: str) -> None:
    all_of_them, _ = counted(text)
    wrong = []
    # a long text says the same of each GPU
    parts = 60 if len(text) < LONG else 15
    ends = {len(text) * part // parts for part in range(parts)}
    for end in sorted(ends | {text.rfind("\n", 0, end) + 1 for end in ends}):
        try:
            number, is_all = counted(text[:end])
        except FormatError:
            continue
        module = name.split("/", 1)[0].replace("-", "_")
        # blanks at the end of a line say nothing
        at_line = text[:end].endswith("\n") or not text[end:].partition("\n")[0].strip()
        may_end = module in WITHOUT_END or module in ("amd_smi", "nvidia_smi_text")
        if is_all and number < all_of_them and not (may_end and at_line):
            wrong.append((end, number, text[max(0, end - 40) : end]))
    assert not wrong, f"{len(wrong)} of {len(ends)} cuts are taken for whole: {wrong[:3]}"
