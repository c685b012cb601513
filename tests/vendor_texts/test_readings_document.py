"""Findings as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from portagpu.facts.readings import (
    End,
    Event,
    Findings,
    FormatError,
    GpuPart,
    GpuState,
    Link,
    Memory,
    Node,
    Pcie,
    Reading,
)
from portagpu.facts.readings.model import from_document, to_document

EVERYTHING = Findings(
    kind="tool",
    readings=(
        Reading(
            source="tool",
            vendor="amd",
            index=3,
            pci="0000:05:00.0",
            unique_id=2**63 + 1,
            memory_bytes=206141652992,
            mig_enabled=False,
            firmware={"vbios": "1.2"},
            parts=(GpuPart(index=0, profile="CPX", unit_count=38),),
            pcie=Pcie(generation=5, width=16),
            memory=Memory(ecc_enabled=True, by_block={"UMC": (0, None)}),
            state=GpuState(temperatures_c={"gpu": 41}, power_w=137.5, throttling=()),
        ),
        Reading(source="tool", vendor="nvidia"),
    ),
    links=(Link(source="tool", a=End(Node.GPU, "GPU0"), b=End(Node.NIC, "mlx5_0"), kind="pcie"),),
    events=(Event(source="log", vendor="nvidia", code="Xid 79", fatal=True),),
    versions={"driver": "570.86.15"},
    problems=("GPU 3 does not answer",),
)


def test_findings_survive_json() -> None:
    text = json.dumps(to_document(EVERYTHING), allow_nan=False)
    assert from_document(json.loads(text)) == EVERYTHING


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "findings: must be an object with keys"),
        ([], "findings: must be an object with keys"),
        ({}, "kind"),
        ({"kind": 3}, "findings.kind: must be text, not 3"),
        ({"kind": "a", "later": 1}, "findings.later: is not a known key"),
        ({"kind": "a", "readings": {}}, "findings.readings: must be a list"),
        ({"kind": "a", "readings": [{"source": "a"}]}, "vendor"),
        ({"kind": "a", "readings": [{"source": "a", "vendor": "b", "index": True}]}, "index"),
        ({"kind": "a", "readings": [{"source": "a", "vendor": "b", "index": "3"}]}, "index"),
        ({"kind": "a", "versions": {"driver": None}}, "versions.driver: must be text, not None"),
        ({"kind": "a", "versions": []}, "versions: must be an object with keys"),
    ],
)
def test_what_is_not_findings_says_where(document: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        from_document(document)


def test_an_end_of_no_known_kind_is_refused() -> None:
    document = to_document(EVERYTHING)
    document["links"][0]["a"]["node"] = "fridge"
    with pytest.raises(FormatError, match=r"\.node: must be one of gpu, cpu, .*, not 'fridge'"):
        from_document(document)


def test_pairs_have_two_items() -> None:
    document = to_document(EVERYTHING)
    document["readings"][0]["memory"]["by_block"]["UMC"] = (1, 2, 3)
    with pytest.raises(FormatError, match=r"by_block.UMC: must be a list of 2 items, not \[1"):
        from_document(document)
