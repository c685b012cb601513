"""Reads, checks and writes bundles: form, hashes, and the evidence of every result.

The result ids that a bring-up can report: of its gates, conformance cases and measures.

An id stays while the parameters in its brackets may change: a committed result stays valid when a
case loses a dtype, or becomes a test of this package. It then earns nothing.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import mapping, name, object_of, one_of, or_null, positive
from portagpu.base.errors import BundleError, PortagpuError, TargetNotFound
from portagpu.base.files import read_bounded, write_atomic
from portagpu.base.redact.names import machine_names
from portagpu.base.redact.scrub import KINDS, MAX_TEXT, find_identifying
from portagpu.base.text import one_line, shortened
from portagpu.checks.bringup.gates import load_gates
from portagpu.devices.registry import plugin
from portagpu.facts.arch import base_name
from portagpu.facts.targets import load_target
from portagpu.reports.bundles.content import (
    EFFORT,
    KEYS,
    SCHEMA,
    code_sha256,
    digests,
    file_name,
    make,
    to_text,
)
from portagpu.runs.results.advice import find_check
from portagpu.runs.results.run import Run
from portagpu.runs.results.schema import check_version
from portagpu.runs.results.verdicts import Evidence
from portagpu.suites.compile.judge import SUITE as BUILDS
from portagpu.suites.conformance.cases import SUITE, base_id, retired_cases
from portagpu.suites.conformance.judge import OWN_AREA
from portagpu.suites.performance import cases as measures
from portagpu.suites.performance.cases import SUITE as MEASURES
from portagpu.suites.performance.device import MeasuredDevice
from portagpu.suites.performance.timing import Effort
from portagpu.suites.screen import SUITE as SCREEN

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result
    from portagpu.suites.conformance.messages import ListedCase


_BRINGUP: Final = "bringup"
_SIZE: Final = re.compile(r"(?<=\[)\d+(x\d+x\d+)?(?=\]$)")
"""The size of a measure, which follows the device: ``gemm/fp32[4096]``."""


def check_ids(run: Run, *, same_code: bool) -> None:
    """Raise BundleError unless every gate has a result and every result a known id.

    Gates may have been added since other code measured: then only the gates that it began count.
    """
    gates = set(_gates())
    begun = set(run.info.area_duration_s) & gates
    seen: set[str] = set()
    for index, result in enumerate(run.results):
        where, area = f"result.results[{index}]", area_of(result)
        if not _is_known(result, gates):
            raise BundleError(f"{where}.id: {result.id} is not an id of this package")
        if result.extra.get("area", area) != area:
            raise BundleError(f"{where}.extra.area: is not {area}, the area of {result.id}")
        seen.add(result.area)
    missing = sorted((gates if same_code or not begun else begun) - seen)
    if missing:
        raise BundleError(f"result.results: has no result of the gate {missing[0]}")


def suite_of(result: Result) -> str:
    """The suite that a result comes from: "conformance", "performance", "bringup"."""
    return str(result.extra.get("suite", result.suite))


def area_of(result: Result) -> str:
    """The area of a result in its suite, which its id begins with: "rng", "gemm", "links"."""
    return result.id.partition("/")[0]


def most_earned(result: Result) -> Evidence | None:
    """The strongest evidence that a result can have, whatever it states.

    For a case its fixtures decide, for a gate ``gates.toml``; measures are executed, and kernels
    compiled. What the suite says of itself, and an id that nothing reports any more, earn nothing.
    """
    suite = suite_of(result)
    if suite == SUITE:
        return _cases().get(result.id)
    if suite == MEASURES:
        return Evidence.EXECUTED if _is_measure(result.id) else None
    if suite == BUILDS:
        return Evidence.COMPILED
    if suite == SCREEN:
        return Evidence.EXECUTED if result.id in _screened() else None
    return _gates().get(area_of(result))


@cache
def stated_names(suite: str, area: str) -> frozenset[str]:
    """All that a suite has in an area, by ``stated_name``: empty where nothing states it.

    Cases of the deep level are not asked for.
    """
    if suite == SUITE:
        return frozenset(name for name in _default_cases() if name.partition("/")[0] == area)
    if suite == MEASURES:
        return frozenset(name for name in measures.metrics() if name.partition("/")[0] == area)
    return _screened() if suite == area == SCREEN else frozenset()


def stated_areas(suite: str) -> frozenset[str]:
    """The areas of a suite of which ``stated_names`` knows what is in them."""
    names = _cases() if suite == SUITE else measures.metrics() if suite == MEASURES else ()
    return frozenset([SCREEN] if suite == SCREEN else (name.partition("/")[0] for name in names))


def stated_name(suite: str, identifier: str) -> str:
    """What an id counts as in ``stated_names``: the case, or the metric, whatever its size."""
    return identifier.partition("[")[0] if suite == MEASURES else identifier


def _is_known(result: Result, gates: set[str]) -> bool:
    if result.suite != _BRINGUP or result.area not in gates:
        return False
    suite, base = suite_of(result), base_id(result.id)
    area, _, name = base.partition("/")
    if suite == SUITE:
        known = base in _bases() or base in retired_cases()
        return known or (area == OWN_AREA and name != "")
    if suite == MEASURES:
        return base in measures.metrics() or _is_measure(result.id)
    if suite == SCREEN:
        return result.area == area and find_check(SCREEN, result.id) is not None
    measure = result.id.partition("/peers/")[2]
    named = _is_measure(measure) if measure else base == result.id
    own = suite == _BRINGUP and area == result.area
    return own and named and find_check(_BRINGUP, result.id) is not None


@cache
def _gates() -> Mapping[str, Evidence | None]:
    return {gate.id: gate.earns for gate in load_gates()}


@cache
def _listed() -> Sequence[ListedCase]:
    # the engine is imported only where its cases are needed
    from portagpu.suites.conformance import list_cases

    return list_cases()


@cache
def _cases() -> Mapping[str, Evidence | None]:
    return {case.id: case.evidence for case in _listed()}


@cache
def _default_cases() -> frozenset[str]:
    return frozenset(case.id for case in _listed() if case.default)


@cache
def _screened() -> frozenset[str]:
    """Every id of a screen that work on a device earns."""
    # many modules, and few results are of a screen
    from portagpu.train.exact.probes import PROBES

    names = (each.name for each in PROBES)
    return frozenset(f"{SCREEN}/{name}" for name in ("device", "digests", *names))


@cache
def _bases() -> frozenset[str]:
    return frozenset(map(base_id, _cases()))


def _is_measure(full: str) -> bool:
    return _SIZE.sub("", full) in _measures()


@cache
def _measures() -> frozenset[str]:
    """Every id of the performance suite, without sizes."""
    device = MeasuredDevice(backend="", name="")
    planned = measures.plan(None, device, Effort.FULL, 2, None)
    return frozenset(_SIZE.sub("", case.id) for case in planned) | measures.FURTHER_IDS


_WORLD: Final = re.compile(r"[\[-]n?(\d++)\]")
"""The number of ranks in an id: ``collectives/all_reduce[8]``, ``collectives/sum[float32-n4]``."""
_RANK: Final = re.compile(r"rank (\d+)")
_DEVICE: Final = "identity/device"
"""The id of the results whose ``extra.facts`` holds what a device reported."""


def check_evidence(run: Run) -> None:
    """Raise BundleError for the first statement that is impossible."""
    if run.info.replay:
        raise BundleError("result.run.replay: a recording was judged, and nothing executed")
    target = _target(run)
    shared = _run_shares_device(run, target)
    _check_devices(run, target)
    if not shared:
        for result in run.results:
            ranks = needed_ranks(result)
            if Evidence.EXECUTED in result.evidence and ranks > len(run.info.devices):
                raise BundleError(
                    f"{result.id}: {ranks} ranks cannot have executed on "
                    f"{len(run.info.devices)} device(s)"
                )
    _check_names(run, shared)


def _check_names(run: Run, shared: bool) -> None:
    """Check that results with evidence name devices that described themselves, or ranks of them."""
    worlds = (gate.amounts[EFFORT].get("shared_world", 1) for gate in load_gates())
    ranks = max(worlds) if shared else len(run.info.devices)
    found = (result for result in run.results if result.id == _DEVICE)
    described = {each.device for each in found if each.failed or _facts(each) is not None}
    words = ("rank", f"{run.info.backend} device")
    known = {None, *described, *(f"{word} {n}" for word in words for n in range(ranks))}
    for result in run.results:
        if result.evidence and most_earned(result) and result.device not in known:
            raise BundleError(
                f"{result.id}: {result.device} is not among the devices that described themselves"
            )


def needed_ranks(result: Result) -> int:
    """The least number of devices that a result needs if ranks share none, as far as it says."""
    found = [1]
    if isinstance(result.shape, dict) and isinstance(result.shape.get("ranks"), int):
        found.append(result.shape["ranks"])
    if isinstance(result.extra.get("ranks"), int):
        found.append(result.extra["ranks"])
    if (match := _RANK.fullmatch(result.device or "")) is not None:
        found.append(int(match[1]) + 1)
    if result.id.startswith("collectives/") and (match := _WORLD.search(result.id)) is not None:
        found.append(int(match[1]))
    return max(found)


def _target(run: Run) -> Target:
    if run.info.target is None:
        raise BundleError("result.run.target: is null; a bundle must be of a known target")
    try:
        return load_target(run.info.target)
    except TargetNotFound as error:
        raise BundleError(f"result.run.target: {error}") from error


@cache
def _shares_device(backend: str) -> bool:
    return plugin(backend).shared


def _run_shares_device(run: Run, target: Target) -> bool:
    """Whether the backend's ranks share one device, as those of a CPU do."""
    try:
        shared = _shares_device(run.info.backend or "")
    except PortagpuError as error:
        raise BundleError(f"result.run.backend: {error}") from error
    if shared != (target.arch.vendor == "cpu"):
        raise BundleError(
            f"result.run.backend: a run of {run.info.backend} did not execute on {target.id}"
        )
    return shared


def _facts(result: Result) -> dict[str, Any] | None:
    """What a device reported of itself; None in a result without it."""
    facts = result.extra.get("facts") if result.id == _DEVICE else None
    return facts if isinstance(facts, dict) and facts.get("device") == result.device else None


def _check_devices(run: Run, target: Target) -> None:
    """Check that the devices of the run are the target's, and that each reported so itself."""
    expected = {"vendor": target.arch.vendor, "arch": target.arch.name, "target": target.id}
    seen = [facts for result in run.results if (facts := _facts(result)) is not None]
    if not run.info.devices or len(seen) != len(run.info.devices):
        raise BundleError(
            f"result.run.devices: names {len(run.info.devices)} device(s), and {len(seen)} "
            "described themselves"
        )
    for index, (device, facts) in enumerate(zip(run.info.devices, seen, strict=True)):
        where = f"result.run.devices[{index}]"
        for key, wanted in expected.items():
            value = device.get(key)
            if key == "arch" and isinstance(value, str):
                value = base_name(value)
            if value != wanted:
                raise BundleError(f"{where}.{key}: is {value!r}, and {target.id} has {wanted!r}")
        own = {"vendor": "arch_vendor", "arch": "arch", "target": "target"}
        for key, fact in own.items():
            if device.get(key) != facts.get(fact):
                raise BundleError(f"{where}.{key}: the device itself reported {facts.get(fact)!r}")
        if facts.get("backend") != run.info.backend:
            raise BundleError(
                f"{where}: was opened by {facts.get('backend')!r}, not {run.info.backend!r}"
            )


MAX_BUNDLE_BYTES: Final = 16 << 20
"""A full run of a CPU is 0.3 MB; eight devices have eight times its measures."""
MAX_RESULTS: Final = 20_000
DEEPEST: Final = 16
_MAX_NUMBER: Final = 2**64
_MAX_MESSAGE_CHARS: Final = 300
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
        raise BundleError(shortened(one_line(str(error)), _MAX_MESSAGE_CHARS)) from error


def _validate(data: bytes) -> dict[str, Any]:
    document = _document(data)
    _check_unaltered(document)
    if to_text(document).encode() != data:
        raise BundleError("is not written as bringup writes it; keep the file as it was made")
    run = _check_schema(document)
    # an editable install has no digest: its code may be older
    code = document["provenance"]["code_sha256"]
    check_ids(run, same_code=code is not None and code == code_sha256())
    check_evidence(run)
    for where, kind in find_identifying({key: document[key] for key in _OF_A_MACHINE}):
        raise BundleError(
            f"{shortened(where)}: holds what may identify ({kind}); it must be scrubbed"
        )
    return document


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_BUNDLE_BYTES + 1)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}") from error


def _document(data: bytes) -> dict[str, Any]:
    """The document: strict JSON within bounds, with the keys that the digests cover."""
    if len(data) > MAX_BUNDLE_BYTES:
        raise BundleError(f"is larger than {MAX_BUNDLE_BYTES >> 20} MiB")
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
            f"is not a bundle of bringup --level full --out: its keys must be {', '.join(KEYS)}"
        )
    _check_bounds(document)
    result = document["result"]
    if not isinstance(result, dict) or not isinstance(result.get("results"), list):
        raise BundleError("result.results: must be a list")
    if len(result["results"]) > MAX_RESULTS:
        raise BundleError(f"result.results: has more than {MAX_RESULTS} entries")
    for index, entry in enumerate(result["results"]):
        if not isinstance(entry, dict) or not isinstance(entry.get("area"), str):
            raise BundleError(f"result.results[{index}].area: must be text")
    return document


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")


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
        elif isinstance(value, int) and abs(value) >= _MAX_NUMBER:
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
            raise BundleError(f"scrubbed: has an unknown kind: the kinds are {', '.join(KINDS)}")
        positive.read(count, f"scrubbed.{kind}")
    try:
        run = Run.from_json(document["result"])
    except PortagpuError as error:
        raise BundleError(f"result.{error}") from error
    for key in ("interrupted", "error"):
        if getattr(run.info, key):
            raise BundleError(f"result.run.{key}: a bundle is of a run that ended by itself")
    return run


def write_bundle(run: Run, effort: str, folder: Path) -> Path:
    """Write the bundle of a run on this machine into ``folder`` and return its path.

    It is validated first.

    :param run: a whole bring-up of this machine
    :param effort: "full"; a quick run measures only a part
    :param folder: gets ``<target>-<day>-<digest>.json``
    :raises BundleError: with the reason if there is no bundle
    :raises OutputError: if the file cannot be written
    """
    text = to_text(make(run, effort, machine_names()))
    bundle = parse(text.encode())
    return write_atomic(folder / file_name(bundle), text)
