"""Profiles of collectives and files for tuners: what is written is read, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.devices.collectives.choice import BasisKind, Question, tuned_choice
from portagpu.devices.collectives.comm import Comm
from portagpu.devices.collectives.cost import fit_line
from portagpu.devices.collectives.emit import (
    TunerLine,
    files_of,
    lines_of,
    read_tuner,
    tuner_forms,
    write_tuner,
)
from portagpu.devices.collectives.tuning import (
    Candidate,
    Entry,
    Machine,
    Point,
    Profile,
    Stack,
    in_ranges,
    read_profile,
    repeats,
    settings,
)
from portagpu.facts.nccl_tests.model import TUNED
from portagpu.facts.readings.model import FormatError
from portagpu.facts.targets import load_target
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CSV = ROOT / "tests/vendor_texts/tuner_csv"
HERE = Machine(backend="cuda", target="nvidia-h100-sxm", arch="sm_90", product="H100", units=132)
NCCL = Stack(library="NCCL", version="2.30.7", torch="2.13.0")
PLAIN = Candidate(name="call")
RING = Candidate(
    name="ring-simple",
    environment={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
    algorithm="ring",
    protocol="simple",
)
TREE = Candidate(
    name="tree-ll", environment={"NCCL_ALGO": "Tree"}, algorithm="tree", protocol="ll", channels=8
)


def point(size_bytes: int, ratio: float = 1.5) -> Point:
    return Point(
        size_bytes=size_bytes,
        default_us=ratio * 10.0,
        chosen_us=10.0,
        ratio=ratio,
        spread=0.1,
        pairs=12,
    )


def entry(*chosen: tuple[Candidate, int], **fields: Any) -> Entry:
    given = {"operation": "all_reduce", "dtype": "float32", "ranks": 8, "nodes": 1, **fields}
    return Entry(**given, ranges=in_ranges([(each, point(size)) for each, size in chosen]))


def profile(*entries: Entry, machine: Machine = HERE, stack: Stack = NCCL) -> Profile:
    line = fit_line("all_reduce", 8, [(10**n, 10.0 + 10**n / 1e3) for n in range(3, 8)])
    slow = fit_line("all_reduce", 8, [(10**n, 20.0 + 10**n / 1e3) for n in range(3, 8)])
    known = entries or (
        replace(
            entry((TREE, 1024), (TREE, 65536), (RING, 1 << 20), (PLAIN, 16 << 20)),
            fit=line,
            default_fit=slow,
        ),
    )
    return Profile(
        machine=machine, stack=stack, portagpu="1.2", made="2026-11-01T00:00:00Z", entries=known
    )


# profiles


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = profile()
    path = found.write(tmp_path / "a" / "profile.json")
    assert read_profile(path) == found
    assert json.loads(path.read_text())["schema"] == "portagpu.tuning/1"


def test_a_profile_that_is_cut_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = profile().write(tmp_path / "whole.json").read_bytes()
    path = tmp_path / "cut.json"
    # without its last byte, the end of the line, it is whole
    for length in range(0, len(whole) - 1, 23):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError) as caught:
            read_profile(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"schema": "portagpu.tuning/2"},
            "schema: is portagpu.tuning/2; this version r",
        ),
        ({"entries": []}, "a profile has entries"),
        ({"more": 1}, "profile.more: is not a known key"),
        ({"machine": {}}, "machine"),
        ({"made": None}, "profile.made: must be text, not None"),
    ],
)
def test_what_is_not_a_profile_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    document = json.loads(profile().write(tmp_path / "p.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(FormatError, match=words):
        read_profile(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("ranges 0 points 0 chosen_us", "1e999", "1e999 is too large"),
        ("ranges 0 points 0 chosen_us", "9" * 400, "9... is too large"),
        ("ranges 0 points 0 size_bytes", "9" * 5000, "9... is too large"),
        ("ranges 0 points 0 ratio", "-1", "above 0"),
        ("ranges 0 points 0 spread", "-0.5", "at least 0"),
        ("ranges 0 points 0 pairs", "-1", "at least 0"),
        ("fit alpha_us", "-1.0", "alpha, beta and errors are at least 0"),
        ("fit alpha_us", "NaN", "NaN is not a number"),
        ("fit beta_us_per_byte", "1e300", "the times on a line"),
        ("fit error_p95", "-1.0", "alpha, beta and errors are at least 0"),
        ("fit low_bytes", "0", "from a size above 0"),
        ("fit points", "0", "a line has points"),
        ("fit ranks", "7", "an entry of [0-9]+ ranks has a line of 7"),
        ("ranges 0 candidate name", '"a\\nPASS"', "cannot be printed"),
        ("dtype", '"\\ud800"', "cannot be printed"),
    ],
)
def test_numbers_and_texts_that_cannot_be_are_refused(
    tmp_path: Path, path: str, text: str, words: str
) -> None:
    document = json.loads(profile().write(tmp_path / "p.json").read_text())
    place = document["entries"][0]
    *folders, last = [int(each) if each.isdecimal() else each for each in path.split()]
    for each in folders:
        place = place[each]
    place[last] = "HERE"
    (tmp_path / "p.json").write_text(json.dumps(document).replace('"HERE"', text))
    with pytest.raises(FormatError, match=words) as caught:
        read_profile(tmp_path / "p.json")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"schema": NaN}', "[" * 99999, "\0\xff"])
def test_other_texts_are_not_profiles(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match="is not a profile of collectives"):
        read_profile(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("ratio", 0.0), ("chosen_us", -1.0), ("size_bytes", 0), ("default_us", math.inf)],
)
def test_a_point_has_numbers_above_zero(tmp_path: Path, key: str, value: float) -> None:
    document = json.loads(profile().write(tmp_path / "p.json").read_text())
    document["entries"][0]["ranges"][0]["points"][0][key] = value
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(FormatError):
        read_profile(tmp_path / "p.json")


def test_ranges_that_overlap_are_refused() -> None:
    first, second, *_ = profile().entries[0].ranges
    with pytest.raises(ValueError, match="without gaps"):
        replace(profile().entries[0], ranges=(first, replace(second, low_bytes=1)))


def test_ranges_meet_at_the_geometric_mean() -> None:
    (of,) = profile().entries
    assert [(each.low_bytes, each.high_bytes) for each in of.ranges] == [
        (1024, 262144),  # sqrt(2**16 * 2**20) == 2**18
        (262145, 4 << 20),
        ((4 << 20) + 1, 16 << 20),
    ]
    for size_bytes, name in [(1024, "tree-ll"), (262144, "tree-ll"), (262145, "ring-simple")]:
        found = of.range_of(size_bytes)
        assert found is not None
        assert found.candidate.name == name
    assert of.range_of(1023) is None
    assert of.range_of((16 << 20) + 1) is None


@pytest.mark.parametrize(
    ("ratios", "believed"),
    [
        (([1.2, 1.3, 1.1], [1.2, 1.1, 1.3]), True),
        # faster in one order alone
        (([1.5, 1.6, 1.5], [0.9, 0.95, 1.0]), False),
        # less than what counts
        (([1.01, 1.02, 1.01], [1.02, 1.02, 1.01]), False),
        # a third of all is slower
        (([1.4, 1.4, 0.8], [1.4, 1.4, 0.8]), False),
        (([2.0], [2.0]), False),
    ],
)
def test_a_candidate_has_to_repeat(ratios: Any, believed: bool) -> None:
    assert repeats(ratios) is believed


def test_a_measured_size_has_its_measured_time() -> None:
    found = tuned_choice(Question(operation="all_reduce", size_bytes=1 << 20, ranks=8), profile())
    measured = point(1 << 20)
    assert (found.best.algorithm, found.best.time_us) == ("ring", measured.chosen_us)
    assert [each.time_us for each in found.alternatives] == [measured.default_us]
    assert "as they were measured at this size" in found.remarks[-1]


def test_of_several_dtypes_one_has_to_be_named() -> None:
    line = fit_line("all_reduce", 8, [(10**n, 10.0 + 10**n / 1e3) for n in range(3, 8)])
    single = replace(entry((TREE, 1024)), fit=line, default_fit=line)
    found = profile(single, replace(single, dtype="bfloat16"))
    asked = Question(operation="all_reduce", size_bytes=1024, ranks=8)
    with pytest.raises(ValueError, match=r"all_reduce for float32, bfloat16: say which dtype"):
        tuned_choice(asked, found)
    assert "times of bfloat16" in tuned_choice(replace(asked, dtype="bfloat16"), found).remarks[-1]
    with pytest.raises(ValueError, match="too few times of all_reduce"):
        tuned_choice(replace(asked, dtype="float16"), found)
    with pytest.raises(ValueError, match="say which dtype"):
        found.choose_buckets([1 << 20], 100.0, 8)
    assert found.choose_buckets([1 << 20], 100.0, 8, dtype="float32").kind == "ddp"


def test_another_machine_version_or_world_is_refused() -> None:
    found = profile()
    found.check(HERE, NCCL)
    with pytest.raises(
        ValueError, match=r"another machine: .*arch='sm_90'.*this is .*arch='sm_89'"
    ):
        found.check(replace(HERE, arch="sm_89"), NCCL)
    with pytest.raises(ValueError, match=r"another machine: .*132 units, this is .*114 units"):
        found.check(replace(HERE, units=114), NCCL)
    with pytest.raises(ValueError, match=r"another version: .*, this is NCCL 2\.31\.1"):
        found.check(HERE, replace(NCCL, version="2.31.1"))
    with pytest.raises(ValueError, match="another version"):
        found.check(HERE, replace(NCCL, torch="2.14.0"))
    with pytest.raises(ValueError, match="no times of 16 ranks on 2 nodes: it has 8 on 1 node"):
        found.check_ranks(16, 2)


def test_the_versions_are_in_words() -> None:
    assert str(NCCL) == "NCCL 2.30.7 and torch 2.13.0"
    assert str(replace(NCCL, library="Gloo", version=None)) == "Gloo of torch 2.13.0"


# choices


def test_a_choice_is_measured_and_has_the_plain_call_next_to_it() -> None:
    found = tuned_choice(Question(operation="all_reduce", size_bytes=100_000, ranks=8), profile())
    assert found.basis.kind is BasisKind.MEASURED
    assert str(found.basis).startswith(
        "measured on 5 points, error p50 0%, p95 0%, profile of H100"
    )
    # by hand: 10 us and 1 us for each 1000 bytes, and 20 us for the plain call
    assert found.best.time_us == pytest.approx(110.0)
    assert str(found.best) == "tree ll"
    (plain,) = found.alternatives
    assert (plain.algorithm, plain.time_us) == ("call", pytest.approx(120.0))
    assert found.best.busbw_gbs == pytest.approx(100_000 * 2 * 7 / 8 / 110.0 / 1e3)


def test_outside_of_the_measured_sizes_it_is_the_plain_call() -> None:
    found = tuned_choice(Question(operation="all_reduce", size_bytes=1 << 30, ranks=8), profile())
    assert str(found.best) == "call"
    assert "outside of the measured sizes" in found.remarks[0]


def test_a_choice_needs_enough_times() -> None:
    with pytest.raises(ValueError, match="too few times of all_reduce on 8 ranks"):
        tuned_choice(
            Question(operation="all_reduce", size_bytes=1024, ranks=8), profile(entry((RING, 1024)))
        )
    with pytest.raises(ValueError, match="too few times of broadcast"):
        tuned_choice(Question(operation="broadcast", size_bytes=1024, ranks=8), profile())


def test_a_device_takes_its_own_profile(tmp_path: Path) -> None:
    gpu = SimpleNamespace(
        name="cuda",
        target=load_target("nvidia-h100-sxm"),
        arch=SimpleNamespace(name="sm_90"),
        product="H100",
        sizing=SimpleNamespace(unit_count=132),
        plugin=SimpleNamespace(shared=False),
    )
    library = Comm("gloo", "NCCL", "2.30.7", "cpu", _gpu=gpu)
    assert library.machine == HERE
    mine = profile(stack=library.stack)
    path = mine.write(tmp_path / "p.json")
    found = library.choose("all_reduce", 100_000, ranks=8, profile=path)
    assert found.best.time_us == pytest.approx(110.0)
    gpu = SimpleNamespace(**{**vars(gpu), "target": None})
    for other in (replace(library, _gpu=gpu), Comm("x", "y", None, "z")):
        with pytest.raises(ValueError, match="profile"):
            other.choose("all_reduce", 100_000, ranks=8, profile=mine)
    with pytest.raises(ValueError, match="no times of 4 ranks"):
        library.choose("all_reduce", 100_000, ranks=4, profile=mine)


def test_buckets_are_by_the_plain_call_or_by_the_hook() -> None:
    found = profile()
    plain = found.choose_buckets([25 << 20] * 4, 1000.0, 8)
    hooked = found.choose_buckets([25 << 20] * 4, 1000.0, 8, hook=True)
    # by hand: one line is 10 us above the other, for each of the four default buckets
    assert plain.default.step_us - hooked.default.step_us == pytest.approx(40.0, rel=0.01)
    with pytest.raises(ValueError, match="need the times of all_reduce on 4 ranks"):
        found.choose_buckets([1024], 1000.0, 4)


# settings of vendors


@pytest.mark.parametrize(("vendor", "library"), [("nvidia", "NCCL"), ("amd", "RCCL")])
def test_settings_are_of_the_library_and_its_version(vendor: str, library: str) -> None:
    form = tuner_forms()[vendor]
    for operation in TUNED:
        for each in settings(vendor, library, "2.30.7", operation):
            assert each.environment
            assert each.algorithm in form.algorithms
            assert each.protocol in form.protocols
            assert operation in form.operations.values()
    names = {each.name for each in settings(vendor, library, "2.30.7", "all_reduce")}
    assert {"ring-simple", "tree-ll"} <= names
    assert {each.name for each in settings(vendor, library, "2.30.7", "broadcast")} < names
    older = {each.name for each in settings(vendor, library, "2.7.8", "all_reduce")}
    assert older < names
    assert settings(vendor, "Gloo", "2.30.7", "all_reduce") == []
    assert settings(vendor, library, None, "all_reduce") == []
    assert settings("nobody", library, "2.30.7", "all_reduce") == []


# files for tuners


def test_the_example_of_the_plugin_of_nccl_is_read() -> None:
    """By eye, from plugins/tuner/example/nccl_tuner.conf of NCCL 2.30.7."""
    found = read_tuner((CSV / "nccl.conf").read_text(), tuner_forms()["nvidia"])
    assert len(found) == 9
    assert found[0] == TunerLine(
        operation="all_reduce",
        low_bytes=0,
        high_bytes=65536,
        algorithm="tree",
        protocol="simple",
        channels=2,
        nodes=1,
        ranks=None,
        registered=True,
    )
    assert found[2].pipelined == 4
    assert (found[2].channels, found[2].nodes, found[2].registered) == (None, None, None)
    assert (found[5].operation, found[5].nodes, found[5].pipelined) == ("all_gather", 2, None)
    assert [each.operation for each in found[-3:]] == ["reduce_scatter", "reduce_scatter", "reduce"]


def test_the_published_files_of_rccl_are_read() -> None:
    """By eye, from ext-tuner/example of RCCL."""
    form = tuner_forms()["amd"]
    found = read_tuner((CSV / "rccl.conf").read_text(), form)
    assert len(found) == 27
    assert {each.ranks for each in found} == {2, 4, 8, 16, 32}
    last = found[-1]
    assert (last.operation, last.low_bytes, last.high_bytes) == ("reduce_scatter", 262144, 8388608)
    assert (last.channels, last.nodes, last.ranks, last.pipelined) == (4, 8, 8, None)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_lines_that_are_written_are_read(vendor: str) -> None:
    form = tuner_forms()[vendor]
    for file in CSV.glob("*.conf"):
        lines = read_tuner(file.read_text(), form)
        text = write_tuner(lines, form, ["a note", "another\nnote"])
        assert read_tuner(text, form) == lines
        assert max(map(len, text.splitlines())) <= form.longest_line


def test_each_library_has_its_own_word_for_its_own_channels() -> None:
    """NCCL's plugin takes -1 for the one channel that it has set before; RCCL warns of 0."""
    line = TunerLine(
        operation="all_reduce",
        low_bytes=1,
        high_bytes=2,
        algorithm="ring",
        protocol="ll",
        channels=None,
        nodes=1,
        ranks=8,
    )
    forms = tuner_forms()
    assert write_tuner([line], forms["nvidia"]).splitlines()[-1] == (
        "allreduce,1,2,ring,ll,0,1,8,-1,-1"
    )
    assert write_tuner([line], forms["amd"]).splitlines()[-1] == (
        "allreduce,1,2,ring,ll,-1,1,8,-1,-1"
    )
    with pytest.raises(FormatError, match="no line"):
        read_tuner("", forms["amd"])
    assert read_tuner("allreduce,1,2,ring,ll,0,1,8", forms["amd"])[0].channels == 0


def test_a_file_of_ours_that_is_cut_anywhere_is_refused() -> None:
    form = tuner_forms()["nvidia"]
    text = write_tuner(lines_of(profile()), form, ["note"])
    assert len(read_tuner(text, form)) == 2
    for length in range(len(text)):
        with pytest.raises(FormatError) as caught:
            read_tuner(text[:length], form)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("allreduce,0,1,ring,simple,2,1", "line 2 has 7 fields instead of 8 to 10"),
        ("allreduce,0,1,ring,simple,2,1,1,1,1,1", "has 11 fields"),
        ("alltoall,0,1,ring,simple,2,1,1", "unknown collective 'alltoall'"),
        ("allreduce,0,1,rings,simple,2,1,1", "unknown algorithm 'rings'"),
        ("allreduce,0,1,ring,LL,2,1,1", "unknown protocol 'LL'"),
        ("allreduce,0,x,ring,ll,2,1,1", "has 'x' where a number belongs"),
        ("allreduce,-1,1,ring,ll,2,1,1", "has a size below 0"),
        ("allreduce,2,1,ring,ll,2,1,1", "begins at 2 bytes and ends at 1"),
        ("allreduce,0,1,ring,ll,2,1,1,1,7", "7 for registered buffers"),
        ("allreduce,0,1,ring,ll,2,1,,1,1", "has '' where a number belongs"),
        ("allreduce,0,1,ring,ll,2,1,1" + " " * 300, "more than 254 characters"),
    ],
)
def test_what_the_library_would_take_otherwise_is_refused(line: str, words: str) -> None:
    for form in tuner_forms().values():
        with pytest.raises(FormatError, match=words):
            read_tuner(f"# note\n{line}\n", form)


def test_what_a_file_cannot_say_is_refused() -> None:
    (form, *_) = tuner_forms().values()
    line = lines_of(profile())[0]
    with pytest.raises(ValueError, match="knows no spiral"):
        write_tuner([replace(line, algorithm="spiral")], form)
    with pytest.raises(ValueError, match="no lines to write"):
        write_tuner([], form)


# what is emitted


def test_a_profile_of_a_tuners_library_emits_its_file() -> None:
    files, reasons = files_of(profile())
    lines = read_tuner(files["nccl_tuner.conf"], tuner_forms()["nvidia"])
    assert [(each.algorithm, each.channels, each.high_bytes) for each in lines] == [
        ("tree", 8, 262144),
        ("ring", None, 4 << 20),
    ]
    assert {(each.nodes, each.ranks) for each in lines} == {(1, 8)}
    text = files["nccl_tuner.conf"]
    assert "Valid for NCCL 2.30.7 and torch 2.13.0, on H100 with 132 units" in text
    assert "NCCL_TUNER_CONFIG_FILE" in text
    assert "no ddp.json: bucket sizes need --params and --backward-ms" in reasons
    # sizes differ, so no variable is set
    script = files["environment.sh"]
    assert not [each for each in script.splitlines() if not each.startswith("#")]
    assert "# export NCCL_ALGO=Ring" in script


def test_variables_are_set_if_all_sizes_agree() -> None:
    found = profile(entry((RING, 1024), (RING, 4096)), entry((RING, 1024), operation="broadcast"))
    script = files_of(found)[0]["environment.sh"]
    assert [each for each in script.splitlines() if not each.startswith("#")] == [
        "export NCCL_ALGO=Ring",
        "export NCCL_PROTO=Simple",
    ]
    assert "# Valid for NCCL 2.30.7 and torch 2.13.0" in script


def test_a_profile_of_rccl_emits_rccls_file() -> None:
    amd = Machine(backend="rocm", target="amd-mi300x", arch="gfx942", product=None, units=304)
    found = profile(machine=amd, stack=replace(NCCL, library="RCCL"))
    files, _ = files_of(found)
    assert "rccl_tuner.csv" in files
    assert "nccl_tuner.conf" not in files
    older = replace(found, stack=replace(found.stack, version="2.27.7"))
    files, reasons = files_of(older)
    assert "rccl_tuner.csv" not in files
    assert reasons[0] == (
        "no rccl_tuner.csv: a tuner of RCCL reads it from 2.30.4 on, this is 2.27.7"
    )


def test_a_line_of_a_tuner_needs_algorithm_and_protocol() -> None:
    ring, simple = Candidate(name="a", algorithm="ring"), Candidate(name="p", protocol="simple")
    assert lines_of(profile(entry((ring, 1024), (simple, 65536), (PLAIN, 16 << 20)))) == ()


def test_of_compositions_no_tuners_file_is_written() -> None:
    chunks = Candidate(name="chunks-2", way="chunks-2")
    found = profile(entry((chunks, 1024)), stack=replace(NCCL, library="Gloo", version=None))
    # by hand: with 25 MiB, 14 MiB are left at the end of the backward pass, with 1 MiB only that
    buckets = profile().choose_buckets([1 << 20] * 64, 1e5, 8)
    files, reasons = files_of(found, buckets)
    assert set(files) == {"ddp.json"}
    assert reasons == [
        "no configuration of a tuner: Gloo reads none",
        "no environment.sh: what was chosen needs no variables of Gloo",
    ]
    assert json.loads(files["ddp.json"])["bucket_cap_mb"] == 1
    _, reasons = files_of(profile(entry((chunks, 1024))))
    assert (
        "no nccl_tuner.conf: no algorithm and protocol of NCCL was chosen for any size" in reasons
    )


@pytest.mark.parametrize("data", [b"\x1f\x8b log", b"# a table", b"[" * 99999])
def test_a_file_without_json_is_reported_in_plain_words(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(FormatError, match=r"p\.json is not a profile of collectives: not JSON$"):
        read_profile(tmp_path / "p.json")
