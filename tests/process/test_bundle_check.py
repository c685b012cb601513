"""The validator of bundles: what it accepts, what it refuses in one line, and that it never raises
anything else, whatever the file holds."""

from __future__ import annotations

import copy
import json
import os
import random
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.errors import BundleError
from portagpu.reports.bundles import earned_badges, parse, read_bundle, table
from portagpu.reports.bundles.__main__ import main
from portagpu.reports.bundles.check import MAX_BUNDLE_BYTES, needed_ranks
from portagpu.reports.bundles.content import digests, file_name, make
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.results.schema import RUN_OPTIONAL
from tests.support.bundle_samples import EXECUTED, adopted, altered, bundle, data, full_run, result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

SEED: Final = 20260301
LOADED: Final = Evidence.LOADED


@pytest.fixture(scope="module")
def valid() -> dict[str, Any]:
    return bundle()


def refusal(content: bytes) -> str:
    with pytest.raises(BundleError) as caught:
        parse(content)
    return str(caught.value)


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def without(document: dict[str, Any], gate: str) -> None:
    """Take the results of a gate out."""
    results = document["result"]["results"]
    results[:] = [each for each in results if each["area"] != gate]


@pytest.mark.parametrize(
    ("target", "backend", "count"),
    [("cpu-x86-64", "cpu", 1), ("amd-mi300x", "rocm", 8), ("nvidia-h200-sxm", "cuda", 1)],
)
def test_a_full_run_gives_a_valid_bundle(target: str, backend: str, count: int) -> None:
    made = bundle(full_run(target, backend, count))
    assert parse(data(made)) == made
    assert len({device["uuid"] for device in made["result"]["run"]["devices"]}) == count
    assert made["scrubbed"]["host"] == 1


@pytest.mark.parametrize(
    ("effort", "changes", "why"),
    [
        ("quick", {}, "run bringup with --level full"),
        ("full", {"interrupted": True}, "the run was interrupted"),
        ("full", {"target": None}, "this hardware matches no known target"),
        ("full", {"target": "amd-mi399"}, "amd-mi399"),
    ],
)
def test_a_run_that_is_not_full_gives_none_and_says_why(
    effort: str, changes: dict[str, Any], why: str
) -> None:
    from dataclasses import replace

    run = full_run()
    run.info = replace(run.info, **changes)
    with pytest.raises(BundleError, match=why):
        make(run, effort, ())


def test_every_altered_byte_of_the_content_is_found(valid: dict[str, Any]) -> None:
    content = bytearray(data(valid))
    chosen = random.Random(SEED).sample(range(len(content)), 400)  # noqa: S311 - seeded on purpose
    for place in chosen:
        changed = bytearray(content)
        changed[place] ^= 1
        said = refusal(bytes(changed))
        assert "\n" not in said, said


def last_first(document: dict[str, Any]) -> None:
    results = document["result"]["results"]
    results.append(results.pop(1))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (put("result", "results", 1, "reason", value="another"), "results of environment"),
        (put("result", "results", -1, "value", value=99.5), "results of transfers"),
        (put("result", "run", "target", value="amd-mi300x"), "result.run"),
        (put("result", "verdict", value="FAIL"), "result.verdict"),
        (put("scrubbed", value={}), "scrubbed"),
        (put("provenance", "python", value="3.12.0"), "provenance"),
        (put("sha256", "whole", value="0" * 64), "sha256.whole"),
        (put("sha256", "parts", "effort", value="0" * 64), "effort"),
        (put("sha256", "parts", "more", value="0" * 64), "more, which is missing"),
        (last_first, "the order of the results"),
    ],
)
def test_what_was_altered_is_named(
    valid: dict[str, Any], change: Callable[[dict[str, Any]], None], part: str
) -> None:
    document = copy.deepcopy(valid)
    change(document)
    said = refusal(data(document))
    assert said.startswith("was altered after it was written: "), said
    assert part in said


def one_gpu(*results: Result) -> bytes:
    run = full_run("amd-mi300x", "rocm", 1)
    run.extend(results)
    made = make(run, "full", ())
    return data(made)


COLLECTIVE: Final = {"ranks": 8, "bytes": 2**20}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (
            adopted("collectives/all_reduce[8]", "collectives", "performance", shape=COLLECTIVE),
            "8 ranks cannot have executed on 1 device",
        ),
        (
            adopted("collectives/ranks-know-themselves[n4]", "numerics", "conformance"),
            "4 ranks cannot have executed",
        ),
        (
            adopted("ranks/gemm", "collectives", "performance", device="rank 1"),
            "2 ranks cannot have executed",
        ),
    ],
)
def test_one_gpu_does_not_execute_several_ranks(more: Result, what: str) -> None:
    assert what in refusal(one_gpu(more))


def test_a_device_that_described_itself_or_did_not_open_is_named() -> None:
    run = full_run("amd-mi300x", "rocm", 2)
    for name in ("cuda:1", "rocm device 1", "rank 1"):
        run.add(result("sustained/values", "sustained", device=name))
    parse(data(make(run, "full", ())))
    run.add(result("sustained/values", "sustained", device="cuda:2"))
    assert "sustained/values: cuda:2 is not among" in refusal(data(make(run, "full", ())))


def test_several_ranks_share_a_cpu() -> None:
    run = full_run()
    run.add(adopted("collectives/all_reduce[4]", "collectives", "performance", shape=COLLECTIVE))
    parse(data(bundle(run)))


def test_a_parameter_that_a_case_no_longer_has_is_still_a_result() -> None:
    run = full_run()
    run.add(adopted("rng/seed-repeats[rand_like]", "numerics", "conformance"))
    parse(data(bundle(run)))


@pytest.mark.parametrize(
    ("fields", "ranks"),
    [
        ({}, 1),
        ({"id": "collectives/all_reduce[16]"}, 16),
        ({"id": "collectives/every-size[float32-n4]"}, 4),
        ({"id": "collectives/sum[float32]"}, 1),
        ({"id": "gemm/fp32[4096]"}, 1),
        ({"shape": {"ranks": 8}}, 8),
        ({"extra": {"ranks": 2}}, 2),
        ({"device": "rank 7"}, 8),
        ({"device": "cuda:7"}, 1),
    ],
)
def test_the_ranks_of_a_result(fields: dict[str, Any], ranks: int) -> None:
    given = {"id": "a/b", "suite": "s", "area": "a", "verdict": Verdict.PASS, **fields}
    assert needed_ranks(Result(**given)) == ranks


def as_gpu(document: dict[str, Any]) -> None:
    """A run of a CPU that says that it was one of a GPU, as well as a text editor can."""
    text = json.dumps(document["result"])
    text = text.replace("cpu-x86-64", "amd-mi300x").replace("x86-64", "gfx942")
    document["result"] = json.loads(text.replace('"vendor": "cpu"', '"vendor": "amd"'))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (as_gpu, "a run of cpu did not execute on amd-mi300x"),
        (
            put("schema", value="portagpu.bundle/9"),
            "schema: is portagpu.bundle/9; this version reads portagpu.bundle/1: upgrade portagpu",
        ),
        (put("effort", value="quick"), "effort: must be one of full"),
        (put("provenance", value={}), "provenance.portagpu: is missing"),
        (put("scrubbed", value={"host": "one"}), "scrubbed.host: must be a whole number"),
        (put("scrubbed", value={"node-07": 1}), "scrubbed: has an unknown kind"),
        (put("result", "verdict", value="FAIL"), "result.verdict: is 'FAIL', but the results give"),
        (put("result", "counts", "PASS", value=999), "result.counts: is"),
        (put("result", "run", "interrupted", value=True), "result.verdict: is 'PASS'"),
        (put("result", "run", "target", value=None), "result.run.target: is null"),
        (put("result", "run", "target", value="amd-mi399"), "result.run.target: "),
        (put("result", "run", "backend", value="gpu"), "result.run.backend: "),
        (put("result", "run", "devices", value=[]), "result.run.devices: names 0 device(s)"),
        (put("result", "run", "devices", 0, "arch", value="gfx942"), "result.run.devices[0].arch"),
        (put("result", "results", 0, "extra", "facts", "arch", value="gfx942"), "itself reported"),
        (
            put("result", "results", 0, "extra", "facts", "backend", value="rocm"),
            "opened by 'rocm'",
        ),
        (put("result", "results", 0, "extra", value={}), "1 device(s), and 0 described themselves"),
        (put("result", "run", "host", value="node-07"), "result.run.host: holds what may identify"),
        (put("result", "results", 3, "reason", value="see /home/x/y"), "identify (path)"),
        (put("result", "results", 3, "extra", value={"10.1.2.3": 1}), "identify (address)"),
        (put("result", "results", 3, "id", value="environment"), "environment is not an"),
        (put("result", "results", 3, "id", value="rng/new"), "rng/new is not an"),
        (put("result", "results", -1, "id", value="memory/cope"), "memory/cope is not an"),
        (
            put("result", "results", -2, "id", value="rng/no-such-case"),
            "rng/no-such-case is not an id",
        ),
        (
            put("result", "results", 3, "id", value="identity/wonder"),
            "identity/wonder is not an id",
        ),
        (
            put("result", "results", 3, "id", value="identity/arch[x]"),
            "identity/arch[x] is not an id",
        ),
        (
            put("result", "results", -1, "id", value="sustained/faith"),
            "sustained/faith is not an id",
        ),
        (put("result", "results", -1, "id", value="device/wonder"), "device/wonder is not an"),
        (
            put("result", "results", -1, "extra", "suite", value="wonder"),
            "memory/copy is not an id",
        ),
        (
            put("result", "results", -1, "extra", "area", value="gemm"),
            "extra.area: is not memory, the area of memory/copy",
        ),
        (put("result", "results", -2, "device", value="cuda:7"), "cuda:7 is not among"),
        (
            put("result", "results", -2, "device", value="rank 99"),
            "rank 99 is not among",
        ),
        (put("result", "results", -1, "value", value=10**19 * 2), "more than 64 bits"),
        (put("result", "results", -1, "reason", value="x" * 5000), "a text of 5000 characters"),
        (
            lambda document: without(document, "numerics"),
            "result.results: has no result of the gate numerics",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_digests_that_fit(
    valid: dict[str, Any], change: Callable[[dict[str, Any]], None], what: str
) -> None:
    def recounted(document: dict[str, Any]) -> None:
        before = len(document["result"]["results"])
        change(document)
        document["result"]["counts"]["PASS"] -= before - len(document["result"]["results"])

    assert what in refusal(altered(recounted, valid))


def test_gates_that_came_since_another_code_measured_are_not_missed(
    valid: dict[str, Any],
) -> None:
    def older(document: dict[str, Any], gate: str, code: str | None = "ab" * 32) -> None:
        document["provenance"]["code_sha256"] = code
        before = len(document["result"]["results"])
        without(document, gate)
        document["result"]["counts"]["PASS"] -= before - len(document["result"]["results"])

    assert parse(altered(lambda document: older(document, "sustained"), valid))
    # an editable install does not say which code it was
    assert parse(altered(lambda document: older(document, "sustained", None), valid))
    # one that it timed has to have results
    missing = refusal(altered(lambda document: older(document, "numerics"), valid))
    assert "has no result of the gate numerics" in missing


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not UTF-8 at byte 0"),
        (b"null", "is not a bundle"),
        (b"[]", "is not a bundle"),
        (b"{}", "is not a bundle"),
        (b"[" * 100_000, "is nested deeper"),
        (b'{"a":' * 100_000, "is nested deeper"),
        (b"[" * 50 + b"]" * 50, "is not a bundle"),
        (b"NaN", "is not JSON: NaN is not a number"),
        (b'{"schema": -Infinity}', "is not JSON: -Infinity is not a number"),
        (b"9" * 5000, "is not JSON"),
        (b"1e999", "is not a bundle"),
        (b" " * (MAX_BUNDLE_BYTES + 1), "is larger than 16 MiB"),
    ],
)
def test_what_is_not_a_bundle_at_all_is_one_line(content: bytes, what: str) -> None:
    assert what in refusal(content)


WEIRD: Final = (
    None, True, 0, -1, 1.5, 1e308, 10**18, 10**400, "", "x", "\ud800", "\x1b[2J\n", "/" * 999,
    [], {}, [None], {"": None}, [[[[[[]]]]]], {"a": {"b": {"c": [1, {}]}}}, ["x"] * 50,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in ``value`` but itself."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [found for key, item in items for found in ((*path, key), *places(item, (*path, key)))]


def mutations(document: dict[str, Any], count: int) -> list[bytes]:
    """Bundles with one to three of their values deleted or replaced, half with fitting digests."""
    chance = random.Random(SEED)  # noqa: S311 - seeded on purpose
    made = []
    for number in range(count):
        changed = copy.deepcopy(document)
        for _ in range(chance.randint(1, 3)):
            path = chance.choice(places(changed))
            place: Any = changed
            for step in path[:-1]:
                place = place[step]
            if chance.random() < 0.4:
                del place[path[-1]]
            else:
                place[path[-1]] = copy.deepcopy(chance.choice(WEIRD))
        try:
            rehashed = {**changed, "sha256": digests(changed)}
            made.append(data(rehashed if number % 2 else changed))
        except (KeyError, TypeError, AttributeError, ValueError):
            made.append(json.dumps(changed).encode())
    return made


def test_no_mutation_makes_the_validator_break(valid: dict[str, Any]) -> None:
    mutations_are_refused(valid, 375)


def mutations_are_refused(document: dict[str, Any], count: int) -> None:
    """Every one is accepted, because what was changed is free, or refused with one line."""
    refused = 0
    for content in mutations(document, count):
        try:
            parse(content)
        except BundleError as error:
            refused += 1
            assert str(error).isprintable(), "no line of a terminal"
            assert len(str(error)) <= 300
    assert refused > 0.8 * count, "the mutations hardly change anything"


def test_every_key_that_is_deleted_is_missed(valid: dict[str, Any]) -> None:
    free = {"extra", "versions", "area_duration_s", "devices", "shape", "scrubbed"}
    for path in places(valid):
        if isinstance(path[-1], int) or free & set(path[:-1]) or path[0] == "sha256":
            continue
        if path[-1] in RUN_OPTIONAL:
            continue

        def drop(document: dict[str, Any], path: tuple[Any, ...] = path) -> None:
            place: Any = document
            for step in path[:-1]:
                place = place[step]
            del place[path[-1]]

        changed = copy.deepcopy(valid)
        drop(changed)
        try:
            content = data({**changed, "sha256": digests(changed)})
        except KeyError:
            content = json.dumps(changed).encode()
        refusal(content)


def test_truncated_files_are_refused(valid: dict[str, Any]) -> None:
    content = data(valid)
    ends = random.Random(SEED).sample(range(len(content)), 200)  # noqa: S311 - seeded on purpose
    for end in ends:
        refusal(content[:end])


def test_the_command_line_says_one_line_for_each_file(
    valid: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / file_name(valid)
    good.write_bytes(data(valid))
    assert main([str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: valid, cpu-x86-64, PASS, 15 results\n"
    wrong = tmp_path / "cpu.json"
    wrong.write_bytes(data(valid))
    broken = tmp_path / "broken.json"
    broken.write_bytes(data(valid).replace(b"seed-repeats", b"seed-repeatz"))
    assert main([str(good), str(wrong), str(broken), str(tmp_path / "none.json"), "\0"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4, said
    assert said[0] == f"{wrong}: the name of this bundle is {good.name}"
    assert said[1] == f"{broken}: was altered after it was written: results of numerics"
    assert said[2] == f"{tmp_path / 'none.json'}: cannot be read: No such file or directory"
    assert main([]) == 2
    assert main(["--table"]) == 2
    capsys.readouterr()
    assert main(["--table", str(tmp_path)]) == 1
    broken.unlink()
    wrong.unlink()
    assert main(["--table", str(tmp_path)]) == 0
    assert "`cpu-x86-64`" in capsys.readouterr().out


def test_badges_count_what_ran_and_not_what_was_skipped() -> None:
    run = full_run("amd-mi300x", "rocm", 1)
    run.add(
        adopted(
            "rng/seeds-differ",
            "numerics",
            "conformance",
            verdict=Verdict.SKIP,
            reason="x",
            evidence=(),
        )
    )
    made = make(run, "full", ())
    badges = {
        (each.evidence, each.suite, each.area): dict(each.counts) for each in earned_badges(made)
    }
    assert badges[Evidence.EXECUTED, "conformance", "rng"] == {Verdict.PASS: 1}
    assert badges[Evidence.EXECUTED, "performance", "memory"] == {Verdict.UNVERIFIED: 1}
    assert badges[Evidence.EXECUTED, "bringup", "memory"] == {Verdict.PASS: 1}
    of_one = [key for key in badges if key[1:] == ("bringup", "collectives")]
    assert not of_one, "one GPU does not execute collectives"


def test_badges_are_not_stronger_than_what_was_asked() -> None:
    """Bundles of an earlier code state executed for what touched no device."""
    run = full_run()
    for name in ("identity/plugin-name", "visibility/uuids[cuda]", "kernels/grid-along-y[old]"):
        run.add(adopted(name, "numerics", "conformance", evidence=EXECUTED))
    run.add(result("environment/shm", "environment", evidence=EXECUTED))
    run.add(adopted("rng/seed-repeats[randn]", "numerics", "conformance", evidence=(LOADED,)))
    made = parse(data(bundle(run)))
    badges = {
        (each.evidence, each.suite, each.area): dict(each.counts) for each in earned_badges(made)
    }
    once = {Verdict.PASS: 1}
    assert badges.pop((LOADED, "conformance", "identity")) == once
    assert badges.pop((LOADED, "conformance", "rng")) == once
    assert badges.pop((LOADED, "bringup", "identity")) == {Verdict.PASS: 2}
    assert badges.pop((LOADED, "bringup", "versions")) == once
    areas = {(suite, area) for _, suite, area in badges}
    gates = {"memory", "numerics", "transfers", "collectives", "sustained", "screen"}
    expected = {("conformance", "rng"), ("performance", "memory")}
    assert areas == expected | {("bringup", gate) for gate in gates}
    assert {evidence for evidence, *_ in badges} == {Evidence.EXECUTED}


INVENTED: Final = (
    ("rng/seed-repeats[wonder]", "conformance"),
    ("identity/plugin-name[x]", "conformance"),
    ("suite/wonder", "conformance"),
    ("suite/world-of-rng-seed-repeats", "conformance"),
    ("memory/copy[wonder]", "performance"),
    ("gemm/fp32", "performance"),
    ("gemm/fp32[4096]x", "performance"),
    ("screen/wonder/float32[add]", "screen"),
)


@pytest.mark.parametrize(("name", "suite"), INVENTED)
def test_an_invented_id_earns_no_badge_and_is_reported(
    name: str, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = earned_badges(bundle())
    run = full_run()
    gate = "screen" if suite == "screen" else "numerics"
    run.add(adopted(name, gate, suite, evidence=EXECUTED))
    made = bundle(run)
    assert earned_badges(parse(data(made))) == before
    path = tmp_path / file_name(made)
    path.write_bytes(data(made))
    assert main([str(path)]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert said.endswith(f"16 results; evidence is stated that earns no badge: {name}")


@pytest.mark.parametrize(
    ("name", "gate"),
    [
        ("gemm/fp32[4096]", "sustained"),
        ("gemm/bf16[4096x128x64]", "sustained"),
        ("transfer/h2d[pinned]", "transfers"),
        ("collectives/all_reduce[4]", "collectives"),
        ("ranks/gemm", "collectives"),
        ("sustained/drift", "sustained"),
        ("sustained", "sustained"),
    ],
)
def test_what_the_measures_report_is_executed_whatever_its_size(name: str, gate: str) -> None:
    run = full_run()
    run.add(adopted(name, gate, "performance"))
    run.add(result("sustained/peers/gemm/fp32[4096]", "sustained"))
    badges = {(each.suite, each.area): each.evidence for each in earned_badges(bundle(run))}
    assert badges["performance", name.partition("/")[0]] is Evidence.EXECUTED
    parse(data(bundle(run)))


def test_the_table_shows_what_failed(tmp_path: Path) -> None:
    assert table(tmp_path) == "No result of real hardware is committed yet."
    with pytest.raises(BundleError, match="is not a folder: name that"):
        table(tmp_path / "gone")
    run = full_run("amd-mi300x", "rocm", 8)
    run.add(
        adopted(
            "memory/triad",
            "transfers",
            "performance",
            verdict=Verdict.FAIL,
            reason="slow",
            evidence=EXECUTED,
        )
    )
    made = make(run, "full", ())
    (tmp_path / file_name(made)).write_bytes(data(made))
    row = table(tmp_path).splitlines()[-1]
    assert row.startswith("| `amd-mi300x` | 8 x ")
    assert "memory 2 (1 failed)" in row
    assert f"FAIL, [2026-03-01](../matrix/results/{file_name(made)})" in row
    assert read_bundle(tmp_path / file_name(made)) == made


FOREIGN: Final = (
    "x\x1b[31mred", "a\x9b2Jb", "two\nlines", "](javascript:alert) [x", "<script>", "`code`",
    "| cell |", "*bold* _it_", "www.acme.example", "http://acme.example", "\u202eright", "&lt;",
    "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_a_name_in_the_table_is_shown_and_does_nothing(tmp_path: Path, text: str) -> None:
    def named(document: dict[str, Any]) -> None:
        result = document["result"]
        result["run"]["devices"][0]["name"] = text
        result["run"]["versions"][text] = "1.0"

    content = altered(named)
    name = file_name(json.loads(content))
    (tmp_path / name).write_bytes(content)
    try:
        parse(content)
    except BundleError:
        with pytest.raises(BundleError) as caught:
            table(tmp_path)
        assert str(caught.value).isprintable()
        return
    shown = table(tmp_path)
    assert len(shown.splitlines()) == 3
    assert all(line.isprintable() for line in shown.splitlines())
    row = shown.splitlines()[2]
    bare = re.sub(r"\\.", "", row.replace(f"(../matrix/results/{name})", ""))
    assert bare.count("|") == 10, f"{row} has another cell"
    assert "<" not in bare
    assert "`" not in bare.replace("`cpu-x86-64`", "")
    assert "](" not in bare
    assert "www." not in bare
    assert "://" not in bare


def test_a_path_with_a_terminals_commands_is_shown_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a\x1b[2J\nb"
    folder.mkdir()
    content = data(bundle())
    path = folder / file_name(bundle())
    path.write_bytes(content)
    assert main([str(path)]) == 0
    assert main([str(folder / "none")]) == 1
    assert main(["--table", str(folder / "none")]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("\n") == 3
    assert all(line.isprintable() for line in (said.out + said.err).splitlines())


def test_what_is_not_a_regular_file_is_refused_at_once(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    """A pipe that nobody writes to, and a device without an end."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for given in (["/dev/zero"], [str(pipe)], ["--table", str(tmp_path)]):
        ended = child("-m", "portagpu.reports.bundles", *given, limit_s=60)
        assert ended.code == 1
        assert ended.err.endswith(": cannot be read: not a regular file\n")


BUSY: Final = ("token-" * 666, "a-" * 2000, "//" * 2000, "a." * 2000, "serial " + " " * 3990)
"""Texts that keep patterns busy. tests/full has all but the first."""


def test_a_bundle_of_texts_that_keep_patterns_busy_is_validated() -> None:
    check_of_busy_texts(BUSY[0])


def check_of_busy_texts(text: str) -> None:
    """200 of them: at a minute a text, as cubic time takes, nobody would wait for the end."""
    parse(altered(put("result", "results", 3, "extra", value={"texts": [text] * 200})))


@pytest.mark.parametrize("digits", ["[-" * 1900, "[" * 3900, "[" + "-1" * 1900, "[" + "1" * 3900])
def test_ranks_in_a_long_id_take_no_time(digits: str) -> None:
    given = {"id": f"collectives/{digits}", "suite": "s", "area": "a", "verdict": Verdict.PASS}
    assert needed_ranks(Result(**given)) == 1
