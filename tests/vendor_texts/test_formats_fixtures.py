"""Every format has fixtures with a source and expected values, and is found among other texts."""

from __future__ import annotations

import importlib
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.events import ANSWERS
from portagpu.facts.formats.reader import UNREAD, read_text, readers
from portagpu.facts.readings import FormatError
from tests.support.fuzz_formats import (
    EXPECTED,
    FIXTURES,
    RECORDINGS,
    Seed,
    fixtures,
    format_modules,
)

if TYPE_CHECKING:
    from portagpu.facts.readings.model import Findings

SEEDS = [seed for module in format_modules() for seed in fixtures(module)]
PREPENDED = "GPU 0: Some GPU (UUID: GPU-ffffffff-0000-0000-0000-0000000000ff)\n\n"


def expected(module: str) -> dict[str, Any]:
    return tomllib.loads((FIXTURES / module / EXPECTED).read_text(encoding="utf-8"))


def parsed(seed: Seed) -> Findings:
    module, name = seed.parse.split(":")
    found: Findings = getattr(importlib.import_module(module), name)(decode_text(seed.data))
    return found


@pytest.mark.parametrize("module", format_modules())
def test_every_format_has_fixtures_with_a_source_and_what_they_state(module: str) -> None:
    files = {seed.name.split("/", 1)[1] for seed in fixtures(module)}
    assert files, f"tests/vendor_texts/formats/{module}/ has no fixture"
    assert set(expected(module)) == files, f"{EXPECTED} of {module} has other files"
    named = f"`{module}`" in (FIXTURES / "README.md").read_text(encoding="utf-8")
    assert named, f"tests/vendor_texts/formats/README.md has no source of {module}"


def test_a_reader_of_a_new_module_is_found() -> None:
    assert sorted(readers()) == format_modules()
    assert list(readers())[-1] == "kernel_log", "any text may have lines of a log"


@pytest.mark.parametrize("seed", SEEDS, ids=[seed.name for seed in SEEDS])
def test_a_fixture_is_read_as_it_is_expected(seed: Seed) -> None:
    module, name = seed.name.split("/", 1)
    wanted, found = expected(module)[name], parsed(seed)
    gpus = [
        [-1 if r.index is None else r.index, r.pci or "", r.name or "", r.arch or ""]
        for r in found.readings
    ]
    assert gpus == wanted["gpus"]
    assert len(found.links) == wanted["links"]
    assert [event.code for event in found.events] == wanted.get("events", [])
    assert found.breaks_off != wanted["whole"]


@pytest.mark.parametrize("seed", SEEDS, ids=[seed.name for seed in SEEDS])
def test_a_fixture_is_one_part_and_is_read_whole(seed: Seed) -> None:
    text, alone = decode_text(seed.data), parsed(seed)
    found = [each for each in read_text(text) if each.kind not in (UNREAD, ANSWERS)]
    gone = "v13-lost" in seed.name, "a line before the XML is an output of its own"
    assert len(found) == 1 + gone[0]
    if not gone[0]:
        assert (found[0].readings, found[0].links) == (alone.readings, alone.links)
        assert found[0].events == alone.events


@pytest.mark.parametrize("seed", SEEDS, ids=[seed.name for seed in SEEDS])
def test_a_fixture_after_another_output_is_read_the_same(seed: Seed) -> None:
    first, *found = read_text(PREPENDED + decode_text(seed.data))
    alone = parsed(seed)
    assert first.readings[0].name == "Some GPU"
    readings = [r for each in (first, *found) for r in each.readings][1:]
    links = [link for each in found for link in each.links]
    known = {(r.index, r.pci, r.name) for r in readings}
    assert {(r.index, r.pci, r.name) for r in alone.readings} <= known
    assert len(links) == len(alone.links)


@pytest.mark.parametrize("text", ["", "nothing here\n", "{}", "[]", "[{}]", '{"body": {}}'])
def test_every_reader_refuses_a_text_that_has_none_of_its_values(text: str) -> None:
    for module, reader in readers().items():
        with pytest.raises(FormatError):
            pytest.fail(f"{module} found {reader.parse(text)}")


@pytest.mark.parametrize(
    "module", ["dcgm_exporter", "device_metrics_exporter", "nvidia_gpu_exporter"]
)
def test_samples_of_others_between_those_of_gpus_change_nothing(module: str) -> None:
    # what Prometheus' client libraries add to each page, and a sample that names no GPU
    others = 'go_info{version="go1.24"} 1\npromhttp_metric_handler_requests_total 3\n'
    for seed in fixtures(module):
        lines = decode_text(seed.data).splitlines(keepends=True)
        mixed = "".join(others + line for line in lines) + others
        assert readers()[module].parse(mixed) == parsed(seed)


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to this checkout")
def test_nothing_of_a_recording_is_unread() -> None:
    wanted = ("amd-smi", "amdgpu-top", "hwloc-xml", "kernel-logs", "lspci", "nccl-topo-xml",
              "nvidia-smi-text", "nvidia-smi-xml", "rocm-smi", "rocminfo")  # fmt: skip
    files = [path for kind in wanted for path in sorted((RECORDINGS / kind).iterdir())]
    assert len(files) > 50
    unread = {
        path.name: each.problems
        for path in files
        for each in read_text(decode_text(path.read_bytes()))
        if each.kind == UNREAD
    }
    assert set(unread) <= {"nvidia-fabricmanager.log"}, unread
