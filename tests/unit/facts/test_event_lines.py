"""What is left out before patterns are tried: rules by their letters, lines without words."""

from __future__ import annotations

import pytest

from portagpu.facts.formats import events
from portagpu.facts.formats.cleaning import without_escapes
from portagpu.facts.formats.events import required_letters, table

ESCAPE = "\x1b"


@pytest.mark.parametrize(
    ("pattern", "letters"),
    [
        (r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-f:.]{5,16})\): (?P<number>\d{1,6})", "NVRM: Xid ("),
        (r"a fault|another", ""),
        (r"(?i)any case", ""),
        (r"colou?r of it", "r of it"),
        (r"ab*c{2,3}def", "def"),
        (r"kfd.{0,60}?(?:one|two)", "kfd"),
        (r"[^]x]abc[]]de", "abc"),
        (r"\bword\d+ the end$", " the end"),
        (r"(?P<x>only groups)", ""),
    ],
)
def test_letters_that_every_match_has(pattern: str, letters: str) -> None:
    assert required_letters(pattern) == letters


def test_no_rule_loses_a_line_for_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = table("kernel_log")
    assert sum(bool(rule.literal) for rule in rules.rules) > len(rules.rules) // 2
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0 (channel:1 slot:0 page:0x1)",
        "nvidia 0000:3b:00.0: probe with driver nvidia failed with error -1",
        "Out of memory: Killed process 77 (python)",
    ]
    text = "\n".join(["quiet", *lines, "", "quiet"])
    found = [(line, event and event.code) for line, event in events.events(text, rules, "x")]
    assert [line for line, _ in found] == lines
    assert all(code for _, code in found)
    bare = events.Table(
        keywords=rules.keywords,
        process_codes=rules.process_codes,
        rules=tuple(events.replace(rule, literal="") for rule in rules.rules),
        about=rules.about,
        gpus=rules.gpus,
        versions=rules.versions,
    )
    assert [(line, event and event.code) for line, event in events.events(text, bare, "x")] == found


def test_a_word_beyond_what_is_matched_of_a_line_counts_for_nothing() -> None:
    long = "x" * 3000 + " NVRM: Xid (PCI:0000:3b:00): 79, "
    text = f"{long}\r\nNVRM: Xid (PCI:0000:3b:00): 79, \n"
    found = list(events.events(text, table("kernel_log"), "x"))
    assert [event and event.code for _, event in found] == ["Xid 79"]


def test_colours_are_removed_with_and_without_their_escape() -> None:
    for text in (f"{ESCAPE}[1;31mred{ESCAPE}[0m", "[1;31mred[0m", "^[[31mred^[[0m", "\\e[31mred"):
        assert without_escapes(text) == "red"
    for text in ("[ 12.5] m", "a[3] = 1 m", "C:\\mm [x]"):
        assert without_escapes(text) == text
