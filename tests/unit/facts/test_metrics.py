"""Samples of exporters: as prometheus-client reads whole texts, and what is left of cut ones."""

from __future__ import annotations

import pytest

from portagpu.facts.formats.metrics import samples
from tests.conftest import ROOT

TEXT = """# HELP a_total Things.
# TYPE a_total counter
a_total{gpu="0",name="A \\"quoted\\" {name}, and more"} 3
a_total{gpu="1",name=""} 1.5e3 1700000000000
# TYPE b gauge
b{gpu="0"} -2
plain 4
b{gpu="1"} NaN
"""


def test_samples_are_those_of_prometheus_s_own_parser() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra 'monitor'")
    fixture = ROOT / "tests/vendor_texts/formats/dcgm_exporter/metrics.txt"
    for text in (TEXT, fixture.read_text()):
        theirs = [
            (sample.name, sample.labels, sample.value)
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels and sample.value == sample.value
        ]
        unescaped = [
            (s.name, {k: v.replace('\\"', '"') for k, v in s.labels.items()}, s.value)
            for s in samples(text)
        ]
        assert unescaped == theirs
        assert theirs


def test_a_cut_text_keeps_its_whole_samples() -> None:
    whole = list(samples(TEXT))
    for end in range(len(TEXT)):
        found = list(samples(TEXT[:end]))
        # the last value may be a part of a number
        assert found[:-1] == whole[: max(len(found) - 1, 0)]
