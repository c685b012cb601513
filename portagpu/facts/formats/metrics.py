"""Samples in the text format of Prometheus, as exporters print them.

Read here line by line: a paste breaks off, has its comments cut, or lines of curl around it, where
prometheus-client's own parser ends with an error. The base installation does not have it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLE: Final = (
    r'[A-Za-z_:][\w:]{0,200}+\{(?:[^{}"]|"(?:[^"\\]|\\.){0,1000}+"){1,4000}+\} *'
    r"[-+]?(?:\d[\d.eE+-]{0,30}|NaN|Inf)(?: -?\d{1,20})?\s*"
)
_SAMPLE: Final = re.compile(
    r'([A-Za-z_:][\w:]{0,200}+)\{((?:[^{}"]|"(?:[^"\\]|\\.){0,1000}+"){1,4000}+)\} *(\S{1,40})'
)
_LABEL: Final = re.compile(r'\s*([A-Za-z_]\w{0,100})="((?:[^"\\]|\\.){0,1000}+)"\s*,?')


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The samples with labels and a finite value, in order."""
    for line in text.splitlines():
        found = _SAMPLE.match(line.strip())
        if found is None:
            continue
        try:
            value = float(found.group(3))
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(found.group(1), dict(_LABEL.findall(found.group(2))), value)
