"""Whether a Vendor has the types that its class states, and patterns that can be used."""

from __future__ import annotations

import re
from string import Formatter
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import DocumentError, check_types
from portagpu.base.text import one_line
from portagpu.facts.vendors.model import Vendor

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
# names of texts that belong to no vendor's GPUs: of a CPU's readings, and of the kernel's log
_RESERVED: Final = frozenset({"cpu", "host"})
_SHORTEST_ERROR: Final = 8
"""Characters of a text that means exhausted memory: a shorter one is in other errors too."""
_OTHERS_PRODUCT: Final = "another product 7"


def wrong_field(vendor: Vendor) -> str:
    """What is wrong with the first wrong field; empty where all are right."""
    try:
        check_types(vendor, Vendor, "")
    except DocumentError as error:
        return f"has a wrong field: {error}"
    # values are read only where all types are right
    return next(_wrong_values(vendor), "")


def _wrong_values(vendor: Vendor) -> Iterator[str]:
    if not _NAME.fullmatch(vendor.name) or vendor.name in _RESERVED:
        form = 'a word in lower case, and neither "cpu" nor "host"'
        yield f"states its name as {one_line(repr(vendor.name))} instead of {form}"
    masks, files = vendor.masks, vendor.driver_files
    if masks is not None and masks.vendor != vendor.name:
        yield f"has masks of {masks.vendor!r} instead of {vendor.name!r}"
    for pattern in (*vendor.makers, *vendor.brands, *vendor.libraries):
        yield from _wrong_pattern(pattern)
    for text in vendor.out_of_memory:
        if len(text) < _SHORTEST_ERROR:
            yield f"states {text!r} for exhausted memory, which is too short to tell it from others"
    if vendor.tuning is not None and not vendor.tuning.product:
        yield "recommends kernel settings without a product's name"
    forms = [(each.counted, "count") for each in vendor.fabrics if each.counted is not None]
    if files is not None:
        yield from _wrong_pattern(files.devices)
        forms.append((files.device, "minor"))
    for form, field in forms:
        if not _has_field_alone(form, field):
            yield f"states the form {form!r}, which has another field than {field}"


def _wrong_pattern(pattern: str) -> Iterator[str]:
    """Why ``pattern`` cannot be one of several in a regular expression."""
    try:
        # first alone: ")(" would end the group around it
        groups = re.compile(pattern).groups
        joined = re.compile(f"(?:{pattern})|a")
    except re.error as error:
        yield f"states the pattern {pattern!r}, which is none: {error}"
        return
    if groups:
        yield f"states the pattern {pattern!r}, whose group captures: write (?:...)"
    if joined.fullmatch("") or joined.fullmatch(_OTHERS_PRODUCT):
        yield f"states the pattern {pattern!r}, which fits any text"


def _has_field_alone(form: str, name: str) -> bool:
    try:
        found = [each[1:] for each in Formatter().parse(form) if each[1] is not None]
    except ValueError:
        return False
    return all(each == (name, "", None) for each in found)
