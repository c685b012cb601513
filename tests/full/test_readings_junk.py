"""Vendors' libraries that answer with anything at all: what is not a value is missing."""

from __future__ import annotations

import json
import random

import pytest

from portagpu.facts.readings.model import from_document, to_document
from portagpu.facts.readings.stream import plausible_findings
from tests.vendor_texts.test_readings_junk import ADDRESS, nvml_findings, of_amdsmi, of_pyrsmi


@pytest.mark.parametrize("changing", [False, True], ids=["probe", "sample"])
@pytest.mark.parametrize("read", [nvml_findings, of_amdsmi, of_pyrsmi])
def test_a_library_that_answers_with_anything_is_read(read, changing, monkeypatch):
    for module in ("portagpu_cuda.gpus._rarely", "portagpu_rocm.gpus._rarely"):
        monkeypatch.setattr(f"{module}._after_s", 0.0)
    monkeypatch.setattr("portagpu_rocm.gpus._seldom._after_s", 0.0)
    for seed in range(300):
        chance = random.Random(f"{seed}")  # noqa: S311
        found = read(chance, changing)
        # as a child process sends it
        document = json.loads(json.dumps(to_document(found)))
        (reading,) = plausible_findings(from_document(document), "junk").readings
        assert reading.key == ADDRESS, f"seed {seed}"
