"""Several outputs of nvidia-smi in one text, each below a banner or the prompt it was typed at."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.inventory.model import Findings, FormatError
from portagpu.telemetry.formats import (
    nvidia_nvlink,
    nvidia_smi_text,
    nvidia_smi_xml,
    nvidia_topo,
    one_line,
)
from portagpu.telemetry.formats._nvidia_sections import Section, is_capture, sections

if TYPE_CHECKING:
    from types import ModuleType

KIND: Final = "nvidia-smi capture"

_STAMP: Final = re.compile(r"collected_at: +(\S.{0,100})")

# the first of these that knows a section reads it
_READERS: Final[tuple[ModuleType, ...]] = (
    nvidia_smi_xml,
    nvidia_topo,
    nvidia_nvlink,
    nvidia_smi_text,
)


def matches(text: str) -> bool:
    """Whether sections with banners, or two commands at prompts, stand at the beginning."""
    return is_capture(text)


def parse(text: str) -> Findings:
    """Everything that the sections say; each source is followed by the state that its title names.

    Sections of no known output are named in one sentence.
    """
    found: list[Findings] = []
    unknown: list[str] = []
    problems: list[str] = []
    taken: str | None = None
    for section in sections(text):
        body = "\n".join(section.lines)
        reader = next((known for known in _READERS if known.matches(body)), None)
        when = _collected(section)
        taken = taken or when
        if reader is None:
            if body.strip() and when is None:
                unknown.append(section.name)
            continue
        try:
            one = reader.parse(body)
        except FormatError as error:
            problems.append(f"{section.name}: {error}")
            continue
        found.append(_of(one, section.state))
        problems.extend(f"{section.name}: {problem}" for problem in one.problems)
    if not found:
        raise FormatError(f"{KIND}: no section is an output of nvidia-smi")
    if unknown:
        problems.append(f"sections that are not read: {one_line(', '.join(unknown), 1000)}")
    return Findings(
        kind=KIND,
        readings=tuple(reading for one in found for reading in one.readings),
        links=tuple(link for one in found for link in one.links),
        versions={name: value for one in found for name, value in one.versions.items()},
        taken=taken or next((one.taken for one in found if one.taken), None),
        problems=tuple(problems),
    )


def _collected(section: Section) -> str | None:
    """When the capture was made, which the section that describes it states."""
    found = (_STAMP.fullmatch(line) for line in section.lines)
    return next((match.group(1).strip() for match in found if match is not None), None)


def _of(found: Findings, state: str | None) -> Findings:
    """``found`` with the state in its sources: "nvidia-smi -q (load)"."""
    if state is None:
        return found
    return replace(
        found,
        readings=tuple(replace(one, source=f"{one.source} ({state})") for one in found.readings),
        links=tuple(replace(one, source=f"{one.source} ({state})") for one in found.links),
    )
