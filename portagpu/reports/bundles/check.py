"""Validation of bundles: every problem is a BundleError of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import mapping, name, object_of, one_of, or_null, positive
from portagpu.base.errors import BundleError, PortagpuError
from portagpu.base.files import read_bounded
from portagpu.base.redact.scrub import KINDS, MAX_TEXT, find_identifying
from portagpu.base.text import one_line, shortened
from portagpu.reports.bundles.document import (
    EFFORT,
    KEYS,
    SCHEMA,
    code_sha256,
    digests,
    file_name,
    to_text,
)
from portagpu.reports.bundles.evidence import check_evidence
from portagpu.reports.bundles.result_ids import check_ids
from portagpu.runs.results.run import Run
from portagpu.runs.results.schema import check_version

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

LARGEST_BYTES: Final = 16 << 20
"""A full run of a CPU is 0.3 MB; eight devices have eight times its measures."""
MOST_RESULTS: Final = 20_000
DEEPEST: Final = 16
_LARGEST_NUMBER: Final = 2**64
_LONGEST_COMPLAINT: Final = 300
_OF_A_MACHINE: Final = ("provenance", "result")

_PROVENANCE: Final = object_of(
    {"portagpu": name, "code_sha256": or_null(name), "python": name, "machine": name}
)


def read_bundle(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The bundle in a file, validated; raises BundleError that begins with the path."""
    try:
        bundle = parse(_read(Path(path)))
        expected = file_name(bundle)
        if Path(path).name != expected:
            raise BundleError(f"the name of this bundle is {expected}")
    except BundleError as error:
        raise BundleError(f"{one_line(str(path))}: {error}") from error
    return bundle


def parse(data: bytes) -> dict[str, Any]:
    """The bundle that ``data`` holds, validated.

    Checked in this order: size and form of the file, what was altered, the schema with the verdict
    that follows from the results, ids, evidence, and that nothing identifies. Raises BundleError.
    """
    try:
        return _validate(data)
    except PortagpuError as error:
        raise BundleError(shortened(one_line(str(error)), _LONGEST_COMPLAINT)) from error


def _validate(data: bytes) -> dict[str, Any]:
    document = _document(data)
    _check_unaltered(document)
    if to_text(document).encode() != data:
        raise BundleError("is not written as bringup writes it; keep the file as it was made")
    run = _check_schema(document)
    check_ids(run, same_code=document["provenance"]["code_sha256"] in (None, code_sha256()))
    check_evidence(run)
    for where, kind in find_identifying({key: document[key] for key in _OF_A_MACHINE}):
        raise BundleError(
            f"{shortened(where)}: holds what may identify ({kind}); it must be scrubbed"
        )
    return document


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, LARGEST_BYTES + 1)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}") from error


def _document(data: bytes) -> dict[str, Any]:
    """The document: strict JSON within bounds, with the keys that the digests cover."""
    if len(data) > LARGEST_BYTES:
        raise BundleError(f"is larger than {LARGEST_BYTES >> 20} MiB")
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BundleError(f"is not UTF-8 at byte {error.start}") from error
    except RecursionError:
        raise BundleError(f"is nested deeper than {DEEPEST}") from None
    except ValueError as error:
        raise BundleError(f"is not JSON: {shortened(str(error))}") from error
    if not isinstance(document, dict) or set(document) != set(KEYS):
        raise BundleError(
            f"is no bundle, which bringup --full --out writes: its keys are {', '.join(KEYS)}"
        )
    _check_bounds(document)
    result = document["result"]
    if not isinstance(result, dict) or not isinstance(result.get("results"), list):
        raise BundleError("result.results: must be a list")
    if len(result["results"]) > MOST_RESULTS:
        raise BundleError(f"result.results: has more than {MOST_RESULTS} entries")
    for index, entry in enumerate(result["results"]):
        if not isinstance(entry, dict) or not isinstance(entry.get("area"), str):
            raise BundleError(f"result.results[{index}].area: must be text")
    return document


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _check_bounds(document: object) -> None:
    """Check that depth, numbers and texts have plausible sizes; without recursion."""
    pending = [(document, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > DEEPEST:
            raise BundleError(f"is nested deeper than {DEEPEST}")
        if isinstance(value, dict):
            pending.extend((item, depth + 1) for pair in value.items() for item in pair)
        elif isinstance(value, list):
            pending.extend((item, depth + 1) for item in value)
        elif isinstance(value, str) and len(value) > MAX_TEXT:
            raise BundleError(f"has a text of {len(value)} characters; {MAX_TEXT} are allowed")
        elif isinstance(value, int) and abs(value) >= _LARGEST_NUMBER:
            raise BundleError("has a whole number of more than 64 bits")
        elif isinstance(value, float) and value - value != 0:
            raise BundleError("has a number that is not finite")


def _check_unaltered(document: Mapping[str, Any]) -> None:
    """Raise one BundleError with every part whose digest differs from the stated one."""
    stated, actual = document["sha256"], digests(document)
    if stated == actual:
        return
    parts = stated.get("parts") if isinstance(stated, dict) else None
    if not isinstance(parts, dict):
        raise BundleError("sha256.parts: must be an object")
    found = actual["parts"]
    differing = [part for part in found if parts.get(part) != found[part]]
    differing += [f"{part}, which is missing" for part in parts if part not in found]
    what = ", ".join(map(shortened, differing)) or "sha256.whole, or the order of the results"
    raise BundleError(f"was altered after it was written: {shortened(what, 200)}")


def _check_schema(document: Mapping[str, Any]) -> Run:
    check_version(document["schema"], "schema", SCHEMA)
    one_of(EFFORT).read(document["effort"], "effort")
    _PROVENANCE.read(document["provenance"], "provenance")
    for kind, count in mapping(document["scrubbed"], "scrubbed").items():
        if kind not in KINDS:
            raise BundleError(f"scrubbed: has what is no kind: {', '.join(KINDS)} are")
        positive.read(count, f"scrubbed.{kind}")
    try:
        run = Run.from_json(document["result"])
    except PortagpuError as error:
        raise BundleError(f"result.{error}") from error
    for key in ("interrupted", "error"):
        if getattr(run.info, key):
            raise BundleError(f"result.run.{key}: a bundle is of a run that ended by itself")
    return run
