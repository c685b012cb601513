"""The doctor on logs of communication libraries and of torch's watchdog."""

from __future__ import annotations

import random

import pytest

from portagpu.checks.collectives_doctor.log_judgement import judge_logs
from portagpu.checks.collectives_doctor.logs import Job, read_log
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.readings.model import FormatError
from tests.vendor_texts.test_doctor_logs import line


def test_binary_junk_and_empty_lines_are_not_a_log() -> None:
    chance = random.Random(3)  # noqa: S311 - seeded on purpose
    for each in (chance.randbytes(1 << 20), bytes(1 << 20), b"\n" * (4 << 20), b" \n" * (2 << 20)):
        with pytest.raises(FormatError, match="its format is not known"):
            read_log(decode_text(each), Job())


def test_thousands_of_communicators_that_were_not_completed_are_all_counted() -> None:
    """Only of the first are the absent ranks worked out, which may be as many as 65 536 each."""
    start = (
        "comm 0x6a rank 1 nranks 60000 cudaDev 0 nvmlDev 0 busId 5000 commId 0x{0:x} - Init START"
    )
    job = Job()
    read_log("\n".join(line(start.format(n)) for n in range(3000)), job)
    found = [each for each in judge_logs(job) if each.id == "creation"]
    assert len(found) == 3000
    assert found[0].evidence.endswith("and 59991 more did not begin it here")
    assert found[-1].evidence.endswith("of 60000 ranks and did not complete it")
