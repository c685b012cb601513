"""The document ``portagpu.bundle/1``: a scrubbed result, where it comes from, and its digests.

A digest is that of a canonical form, which does not depend on line breaks.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.base.errors import BundleError, TargetNotFound
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


def canonical(value: object) -> bytes:
    """JSON in ASCII with sorted keys and no blanks; numbers as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(value: Any, *, fast: bool = False) -> str:
    """The digest of the canonical form, in hexadecimal.

    :param value: a document.
    :param fast: whether it is a large object of finite numbers, which msgspec writes faster.
    """
    written = canonical_fast(value) if fast else None
    return hashlib.sha256(canonical(value) if written is None else written).hexdigest()


_OTHER_FORMS: Final = re.compile(rb"e(?:-\d|[1-9]\d)"), re.compile(rb"0\.0000[1-9]")
"""In a number that msgspec writes unlike Python: 1e-6, 1e16, 0.00001. Texts may have it too."""
_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,\]}])")
_DIGITS: Final = 30
"""More than are in a number before its exponent."""


def canonical_fast(value: Mapping[str, Any]) -> bytes | None:
    """What :func:`canonical` gives of finite numbers, from msgspec, which writes numbers faster.

    None where it is not installed, and where its text may differ in more than some numbers.
    """
    try:
        import msgspec

        text = msgspec.json.encode(value, order="sorted")
    except (ImportError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if not text.isascii() or b"\x7f" in text or b'\\"' in text:
        return None
    parts = []
    at = quotes = 0
    for place in sorted(each.start() for form in _OTHER_FORMS for each in form.finditer(text)):
        near = max(0, place - _DIGITS)
        begin = 1 + max(text.rfind(before, near, place) for before in (b"[", b",", b":"))
        found = _NUMBER.match(text, begin)
        if begin < at or found is None or found.end() <= place:
            continue
        quotes += text.count(b'"', at, begin)
        if quotes % 2:
            # it is in a text
            return None
        parts += [text[at:begin], repr(float(found[0])).encode()]
        at = found.end()
    return b"".join([*parts, text[at:]])
