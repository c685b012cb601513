"""The document ``portagpu.bundle/1``: a scrubbed result, where it comes from, and its digests."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.base.errors import BundleError, ResultError, TargetNotFound
from portagpu.base.redact.scrub import scrub
from portagpu.facts.targets import load_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.runs.results.run import Run


SCHEMA: Final = "portagpu.bundle/1"
EFFORT: Final = "full"
KEYS: Final = ("schema", "effort", "provenance", "scrubbed", "sha256", "result")
_NAMED_DIGITS: Final = 8


def make(run: Run, effort: str, known: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The bundle of a run, as a document that can be written as JSON.

    :param run: a whole bring-up of this machine
    :param effort: "full"; a quick run measures only a part
    :param known: what to redact, see ``portagpu.base.redact.names``
    :raises BundleError: if the run was quick or interrupted, or its hardware is not a known target
    """
    if effort != EFFORT:
        raise BundleError(f"a {effort} run measures only a part; run bringup with --level full")
    if run.info.interrupted:
        raise BundleError("the run was interrupted")
    if run.info.error:
        raise BundleError(f"an error ended the run: {run.why}")
    if run.info.target is None:
        raise BundleError(
            "this hardware matches no known target: docs/targets.md says how to add it"
        )
    try:
        load_target(run.info.target)
    except TargetNotFound as error:
        raise BundleError(str(error)) from error
    scrubbed = scrub(run.to_json(), known)
    bundle = {
        "schema": SCHEMA,
        "effort": effort,
        "provenance": provenance(),
        "scrubbed": scrubbed.counts,
        "result": scrubbed.document,
    }
    return {**bundle, "sha256": digests(bundle)}


def provenance() -> dict[str, str | None]:
    """The version of the code and of Python; ``code_sha256`` is None for an editable install.

    The digest covers the installed files as they are now: each path with the SHA-256 of its
    content. It is the same for one wheel on every machine.
    """
    return {
        "portagpu": __version__,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def code_sha256() -> str | None:
    """The digest of the installed files; None for an editable install."""
    try:
        files = importlib.metadata.distribution("portagpu").files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    inside = {
        file.as_posix(): Path(file.locate())
        for file in files
        if file.suffix in (".py", ".toml", ".ini") and ".." not in file.parts
    }
    if "portagpu/__init__.py" not in inside:
        return None
    try:
        read = {name: hashlib.sha256(inside[name].read_bytes()).hexdigest() for name in inside}
    except OSError:
        return None
    return sha256(read)


def canonical(value: object) -> bytes:
    """JSON in ASCII with sorted keys and no blanks; numbers as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(value: object) -> str:
    """The digest of the canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digests(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """The digest of the bundle without its digests, and of each part, to locate an alteration.

    A part is a key of the bundle, a key of the result, or the results of one area.
    """
    result = bundle["result"]
    parts: dict[str, Any] = {
        **{key: value for key, value in bundle.items() if key not in ("result", "sha256")},
        **{f"result.{key}": value for key, value in result.items() if key != "results"},
    }
    areas: dict[str, list[Any]] = {}
    for entry in result["results"]:
        areas.setdefault(f"results of {entry['area']}", []).append(entry)
    parts |= areas
    whole = {key: value for key, value in bundle.items() if key != "sha256"}
    return {"whole": sha256(whole), "parts": {name: sha256(part) for name, part in parts.items()}}


def to_text(bundle: Mapping[str, Any]) -> str:
    """The bundle as text: ASCII, keys in their order, one line per result."""
    head = {key: bundle[key] for key in KEYS if key != "result"}
    result = dict(bundle["result"])
    results = result.pop("results")
    rows = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    inner = [f"    {json.dumps(key)}: {json.dumps(value)},\n" for key, value in result.items()]
    lines = ",\n".join(f"      {json.dumps(entry)}" for entry in results)
    return (
        "{\n"
        + "".join(rows)
        + '  "result": {\n'
        + "".join(inner)
        + f'    "results": [\n{lines}\n    ]\n  }}\n}}\n'
    )


def file_name(bundle: Mapping[str, Any]) -> str:
    """``<target>-<day of the run>-<start of the digest>.json``."""
    run = bundle["result"]["run"]
    day = run["started"][:10].replace("-", "")
    return f"{run['target']}-{day}-{bundle['sha256']['whole'][:_NAMED_DIGITS]}.json"


_FUTURE: Final = timedelta(minutes=5)
"""Clocks of two machines differ by less; a wrong time zone is at least 15 minutes."""
_OLDEST: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Older than any such document: a clock that was never set begins in 1970 or at a build's day."""
_ROUNDING_S: Final = 1.0
_TIME_OF_ID: Final = re.compile(r"(\d{8}T\d{6})Z-[0-9a-f]{8}")
"""How ``new_run`` makes an id."""


def started(run: Run) -> datetime:
    """When the run began."""
    return datetime.fromisoformat(run.info.started)


def wrong_clock(text: str, now: datetime) -> str:
    """Why a run cannot have begun then, in one clause; empty where it can."""
    began = datetime.fromisoformat(text)
    if began > now + _FUTURE:
        return (
            f"run.started: is {text}, in the future: the clock of that machine or of this one is "
            "wrong"
        )
    if began < _OLDEST:
        return f"run.started: is {text}: the clock of that machine was not set"
    return ""


def check_times(run: Run, now: datetime) -> None:
    """Raise ResultError for a run whose clock was wrong or jumped.

    ``duration_s`` comes from a clock that cannot jump. No result takes longer than its run, unless
    the document was put together by hand.
    """
    if wrong := wrong_clock(run.info.started, now):
        raise ResultError(wrong)
    began = started(run)
    if found := _TIME_OF_ID.fullmatch(run.info.id):
        named = datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        if abs(named - began) > _FUTURE:
            raise ResultError(
                f"run.started: is {run.info.started}, but the id was made at {named:%FT%TZ}: the "
                "clock jumped, or one of them was edited"
            )
    longest = max(run.results, key=lambda each: each.duration_s, default=None)
    if longest is not None and longest.duration_s > run.info.duration_s + _ROUNDING_S:
        raise ResultError(
            f"run.duration_s: is {run.info.duration_s:g}, but {longest.id} took "
            f"{longest.duration_s:g} s: the clock jumped, or the run was not finished"
        )
