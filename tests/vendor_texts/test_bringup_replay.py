"""Bring-up over recordings: what it judges, what it cannot, and what it says of either."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import BundleError, RecordingError
from portagpu.checks.bringup import BringupOptions, Gate, bringup
from portagpu.checks.recordings.record import record
from portagpu.checks.recordings.replay import MANIFEST, Recording
from portagpu.machine.inventory import sources
from portagpu.machine.inventory.sources import origin_of
from portagpu.reports.bundles.check import check_evidence
from portagpu.reports.html import render
from portagpu.runs.results.judgement import Judgement, combine
from portagpu.runs.results.run import Evidence, Result, Run, Verdict, validate
from tests.support.gpu_trees import address, amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, gfx942_node, two_socket_x86

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.forked_verbs import ForkedVerbs

ROOT = Path(__file__).resolve().parents[2]
NOT_REPLAYED = [
    "memory",
    "numerics",
    "transfers",
    "collectives",
    "sustained",
    "screen",
    "health-after",
]
XIDS = """\
[  100.5] NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.
[  101.5] NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x0 to 0x2
"""
CSV = """\
index, name, pci.bus_id, driver_version, memory.total [MiB], compute_cap
0, {name}, 00000000:03:00.0, {driver}, {memory} MiB, 9.0
"""


def replay(*paths: Path, **options: Any) -> Run:
    run = bringup(BringupOptions(replay=Recording(*paths), **options))
    validate(json.loads(run.to_text()))
    return run


def named(run: Run, name: str) -> list[Result]:
    return [result for result in run.results if result.id == name]


def one(run: Run, name: str) -> Result:
    (result,) = named(run, name)
    return result


def tree(root: Path, *gpus: tuple[dict[str, str], dict[str, str]]) -> Path:
    files, links = machine(*gpus)
    return build(root, two_socket_x86() | files, links)


def mi300x(root: Path, count: int = 8) -> Path:
    return tree(root, *(amd_gpu(index) for index in range(count)))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# --- what the run and its results say of themselves


def test_each_gate_either_judges_the_recording_or_says_that_it_cannot(tmp_path: Path) -> None:
    run = replay(mi300x(tmp_path))
    assert run.verdict is Verdict.INCONCLUSIVE
    assert run.exit_code == 3
    unrun = {r.area: r for r in run.results if r.id.endswith("/replay")}
    assert list(unrun) == NOT_REPLAYED
    assert {(r.verdict, r.reason) for r in unrun.values()} == {
        (Verdict.INCONCLUSIVE, "a recording cannot run this")
    }
    judged = {r.area for r in run.results if r.verdict is Verdict.PASS}
    assert judged == {"environment", "identity", "versions", "links", "health"}


def test_what_was_judged_is_recorded_and_what_was_not_has_no_evidence(tmp_path: Path) -> None:
    path = mi300x(tmp_path / "eight")
    run = replay(path)
    said = [{"name": "eight", "sha256": origin_of(path).sha256, "source": None}]
    for result in run.results:
        if result.verdict in (Verdict.SKIP, Verdict.INCONCLUSIVE):
            assert result.evidence == (), result.id
        else:
            assert result.evidence == (Evidence.RECORDED,), result.id
            assert result.extra["recordings"] == said, result.id
    assert run.to_json()["run"]["replay"] == said
    assert (run.info.host, run.info.backend) == ("", None)
    assert run.info.versions["driver"] == "6.10.5"
    assert len(run.info.devices) == 8


def test_the_address_of_a_published_recording_is_named(tmp_path: Path) -> None:
    written(
        tmp_path / MANIFEST,
        json.dumps({"schema": "portagpu.recording/1", "source": "https://example.org/a"}),
    )
    run = replay(tmp_path)
    assert run.info.replay[0]["source"] == "https://example.org/a"


def test_a_document_without_the_key_is_still_read(tmp_path: Path) -> None:
    document = json.loads(replay(mi300x(tmp_path, 1)).to_text())
    del document["run"]["replay"]
    assert Run.from_json(document).info.replay == ()


def test_no_torch_and_no_backend_is_needed(tmp_path: Path) -> None:
    path = mi300x(tmp_path / "eight")
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from portagpu.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "bringup", "--replay", str(path), "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["verdict"] == "INCONCLUSIVE"


def test_a_replay_gives_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="a recording was judged, and nothing executed"):
        check_evidence(replay(mi300x(tmp_path), target="amd-mi300x"))


def test_the_report_names_the_recording_and_escapes_it(tmp_path: Path) -> None:
    page = render(replay(mi300x(tmp_path / "<b>node 7")))
    assert "<b>node 7" not in page
    assert "from the recording &lt;b&gt;node 7" in page
    assert "nothing ran on this hardware" in page
    assert page.count("a recording cannot run this") >= len(NOT_REPLAYED)


# --- the hash of a recording


@pytest.mark.parametrize("make", [mi300x, lambda root: written(root / "a", XIDS).parent])
def test_the_hash_of_a_folder_is_what_other_tools_compute(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    folder = make(tmp_path)
    command = "find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert origin_of(folder).sha256 == done.stdout.split()[0]


def test_the_hash_of_a_file_is_the_files(tmp_path: Path) -> None:
    path = written(tmp_path / "dmesg", XIDS)
    assert origin_of(path).sha256 == hashlib.sha256(XIDS.encode()).hexdigest()
    assert origin_of(path).name == "dmesg"


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_BYTES"])
def test_a_folder_that_is_too_large_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(sources, bound, 1)
    for name in "abc":
        written(tmp_path / name, XIDS)
    assert origin_of(tmp_path).sha256 is None
    assert "too large to be hashed" in render(replay(tmp_path))


# --- identity


def test_eight_gpus_of_a_known_product_pass_with_their_facts(tmp_path: Path) -> None:
    run = replay(mi300x(tmp_path), expect_devices=8, target="amd-mi300x")
    assert run.info.target == "amd-mi300x"
    assert one(run, "identity/count").verdict is Verdict.PASS
    assert one(run, "identity/target").reason == "this machine is amd-mi300x"
    assert one(run, "identity/alike").verdict is Verdict.PASS
    for check in ("arch", "unit-count"):
        found = named(run, f"identity/{check}")
        assert [result.device for result in found] == [address(n) for n in range(8)]
        assert {result.verdict for result in found} == {Verdict.PASS}, check


def test_a_missing_device_and_another_target_fail(tmp_path: Path) -> None:
    run = replay(mi300x(tmp_path, 7), expect_devices=8, target="amd-mi325x")
    assert one(run, "identity/count").reason == "7 device(s) recorded, 8 expected"
    assert one(run, "identity/count").verdict is Verdict.FAIL
    assert one(run, "identity/target").verdict is Verdict.FAIL
    assert run.exit_code == 1
    assert one(run, "links/numa").verdict is Verdict.PASS, "no gate waits for another"


def test_a_number_that_nobody_expects_is_not_a_pass(tmp_path: Path) -> None:
    result = one(replay(mi300x(tmp_path)), "identity/count")
    assert (result.verdict, result.value) == (Verdict.UNVERIFIED, 8)


def test_a_gpu_with_fewer_units_than_its_product_is_named(tmp_path: Path) -> None:
    files, links = machine(*(amd_gpu(index) for index in range(4)))
    files |= gfx942_node(3, 2 << 8, simd_count=1200, memory=192 << 30, unique_id=0xE3AA140F00000002)
    run = replay(build(tmp_path, files, links), target="amd-mi300x")
    bad = [result for result in named(run, "identity/unit-count") if result.failed]
    assert [(result.device, result.reason) for result in bad] == [
        (address(2), "amd-mi300x states 304 CU, the device reports 300")
    ]


def test_a_partition_that_is_missing_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path, *(amd_gpu(index, parts=8) for index in range(8)))
    shutil.rmtree(root / "sys/class/kfd/kfd/topology/nodes/22")
    run = replay(root, expect_devices=64)
    assert one(run, "identity/count").verdict is Verdict.FAIL
    bad = [result for result in named(run, "identity/parts") if result.failed]
    assert [(result.device, result.reason) for result in bad] == [
        (address(2), f"7 of 8 parts of 38 units: {address(2)} part 5 is missing")
    ]
    assert len(named(run, "identity/parts")) == 8
    assert len(run.info.devices) == 63


def test_partitions_are_held_against_equal_shares_of_the_whole(tmp_path: Path) -> None:
    run = replay(tree(tmp_path, *(amd_gpu(index, parts=8) for index in range(2))))
    units = named(run, "identity/unit-count")
    assert len(units) == 16
    assert {result.verdict for result in units} == {Verdict.PASS}
    assert "one of 8 equal parts" in units[0].reason
    assert one(run, "identity/target").verdict is Verdict.UNVERIFIED


def test_slices_of_different_sizes_are_not_odd_ones(tmp_path: Path) -> None:
    path = ROOT / "tests/vendor_texts/formats/nvidia_smi_xml/v11-mig-throttled.xml"
    run = replay(path)
    assert one(run, "identity/parts").verdict is Verdict.UNVERIFIED
    assert one(run, "identity/alike").verdict is Verdict.PASS
    assert len(run.info.devices) == 2
    assert {device["parent"] for device in run.info.devices} == {"0001:c7:00.0"}


def test_an_unknown_product_and_an_empty_name_are_unverified(tmp_path: Path) -> None:
    files, links = machine(nvidia_gpu(0, device="0xfffe", name=""))
    run = replay(build(tmp_path, files, links))
    device, target = one(run, "identity/device"), one(run, "identity/target")
    assert device.verdict is Verdict.UNVERIFIED
    assert device.reason == "unknown product, unknown memory"
    assert target.verdict is Verdict.UNVERIFIED
    assert "matches no known target" in target.reason


def test_a_product_is_known_by_its_name_where_no_source_states_an_architecture(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path / "L", "GPU 0: NVIDIA L4 (UUID: GPU-0000abcd-0000-4000-8000-000000000001)\n"
    )
    run = replay(path)
    assert one(run, "identity/target").reason == "this machine is nvidia-l4"
    assert named(run, "identity/arch") == [], "what nobody states is not compared"


def test_the_odd_gpu_out_is_the_culprit(tmp_path: Path) -> None:
    gpus = [nvidia_gpu(n) for n in range(3)]
    odd = nvidia_gpu(3, device="0x2330", name="NVIDIA H100 80GB HBM3")
    run = replay(tree(tmp_path, *gpus, odd))
    result = one(run, "identity/alike")
    assert (result.verdict, result.device) == (Verdict.FAIL, address(3))


def test_a_host_without_gpus_is_its_cpu(tmp_path: Path) -> None:
    run = replay(build(tmp_path, two_socket_x86()))
    assert [device["kind"] for device in run.info.devices] == ["cpu"]
    assert run.info.target == "cpu-x86-64"
    assert one(run, "links/devices").verdict is Verdict.SKIP


# --- recordings that contradict each other, or are damaged


def test_two_recordings_that_contradict_each_other_are_not_judged(tmp_path: Path) -> None:
    a = written(tmp_path / "a.csv", CSV.format(name="NVIDIA H200", driver="570.1", memory=143771))
    b = written(
        tmp_path / "b.csv", CSV.format(name="NVIDIA H100 80GB HBM3", driver="580.2", memory=81559)
    )
    run = replay(a, b)
    result = one(run, "identity/sources")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.device == "0000:03:00.0"
    for what in ("name", "memory", "driver's version"):
        assert f"its {what} is " in result.reason
    assert [each["name"] for each in run.info.replay] == ["a.csv", "b.csv"]
    assert one(replay(a), "identity/target").reason == "this machine is nvidia-h200-sxm"
    assert named(replay(a), "identity/sources") == []


def test_what_cannot_be_read_next_to_a_recording_is_stated(tmp_path: Path) -> None:
    written(tmp_path / "query.csv", CSV.format(name="NVIDIA H200", driver="570.1", memory=143771))
    written(tmp_path / "notes.txt", "a machine of ours\n")
    (tmp_path / "photo.jpg").write_bytes(bytes(range(256)) * 64)
    result = one(replay(tmp_path), "environment/recording")
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "notes.txt" in result.reason
    assert result.reason.endswith("(and 1 more)")
    assert len(result.extra["problems"]) == 2
    assert one(replay(tmp_path / "query.csv"), "environment/recording").verdict is Verdict.PASS


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.8, 0.95])
def test_a_truncated_output_is_refused_or_judged_as_far_as_it_goes(
    tmp_path: Path, kept: float
) -> None:
    text = (ROOT / "tests/vendor_texts/formats/nvidia_smi_xml/v11-mig-throttled.xml").read_text()
    path = written(tmp_path / "cut.xml", text[: int(len(text) * kept)])
    try:
        run = replay(path)
    except RecordingError as error:
        assert str(error).startswith("cut.xml: ")
        return
    assert one(run, "environment/recording").verdict is Verdict.INCONCLUSIVE


def test_a_log_is_not_a_list_of_devices(tmp_path: Path) -> None:
    run = replay(written(tmp_path / "dmesg", XIDS), expect_devices=8)
    assert one(run, "identity/count").verdict is Verdict.INCONCLUSIVE


def test_a_gpu_that_only_a_log_names_does_not_make_up_for_a_missing_one(tmp_path: Path) -> None:
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    log = written(tmp_path / "dmesg", f"[  99.5] NVRM: GPU at PCI:0000:47:00: {uuid}\n{XIDS}")
    for count in (7, 8):
        root = mi300x(tmp_path / str(count), count)
        result = one(replay(root, log, expect_devices=8), "identity/count")
        assert result.verdict is Verdict.INCONCLUSIVE
        assert result.reason == (
            f"a log names 0000:47:00.0, which no list of devices has: {count} device(s) recorded"
        )


def test_two_kinds_of_error_of_one_gpu_are_one_failure_that_says_both(tmp_path: Path) -> None:
    result = one(replay(written(tmp_path / "dmesg", XIDS)), "health/events")
    assert (result.verdict, result.device) == (Verdict.FAIL, "0000:07:00.0")
    assert "Xid 79" in result.reason


# --- the command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--replay", "none"), "none: no such file or folder"),
        (("--replay", "empty"), "empty: no file in it is a recording"),
        (("--replay", "junk"), "its format is not known"),
        (("--replay", "dmesg", "--replay", "none"), "none: no such file or folder"),
        (("--replay", "dmesg", "--backend", "cpu"), "--backend needs a machine"),
        (("--replay", "dmesg", "--target", "nvidia-h2000"), "there is no target"),
    ],
)
def test_what_cannot_be_replayed_is_one_line_and_exit_code_2(
    tmp_path: Path, verbs: ForkedVerbs, arguments: tuple[str, ...], said: str
) -> None:
    written(tmp_path / "dmesg", XIDS)
    written(tmp_path / "junk/a.txt", "nothing that a tool prints\n")
    (tmp_path / "empty").mkdir()
    done = verbs("bringup", *arguments, folder=tmp_path)
    assert done.code == 2, done.err
    assert done.out == ""
    (line,) = done.err.strip().splitlines()
    assert said in line


# --- the machinery


def gate(check: str, replayed: str | None) -> Gate:
    amounts = {effort: {"limit_s": 5} for effort in ("quick", "full")}
    return Gate(
        "one", "One", "It is.", f"tests.support.bringup_checks:{check}", (), amounts, replayed
    )


def test_a_check_that_reports_one_id_twice_is_an_error_and_ends_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "dmesg", XIDS)
    gates = [
        gate("good", "tests.support.bringup_checks:twice"),
        gate("good", "tests.support.bringup_checks:good"),
    ]
    run = bringup(BringupOptions(replay=Recording(path)), None, gates[:1])
    assert [result.verdict for result in run.results] == [Verdict.PASS, Verdict.ERROR]
    assert "was already reported" in run.results[1].reason


def test_judgements_of_one_name_and_device_become_the_worst_of_them() -> None:
    found = combine(
        [
            Judgement(Verdict.FAIL, "link 1 is down", 1, "1", name="up", device="a"),
            Judgement(Verdict.PASS, "all are up", name="up", device="b"),
            Judgement(Verdict.FAIL, "link 2 is down", 1, "1", name="up", device="a"),
            Judgement(Verdict.UNVERIFIED, "link 3 is slow", name="up", device="a"),
            Judgement(Verdict.SKIP, "one GPU", name="peers"),
            Judgement(Verdict.UNVERIFIED, "nobody knows", name="peers"),
        ]
    )
    assert [(j.name, j.device, str(j.verdict), j.reason, j.value) for j in found] == [
        ("up", "a", "FAIL", "link 1 is down; link 2 is down", 2),
        ("up", "b", "PASS", "all are up", None),
        ("peers", None, "UNVERIFIED", "nobody knows", None),
    ]


def test_a_recorded_machine_is_judged_as_the_machine_itself(tmp_path: Path) -> None:
    root = tree(tmp_path / "machine", *(nvidia_gpu(n) for n in range(4)))
    record(tmp_path / "saved", root, names=())
    ours, theirs = replay(root), replay(tmp_path / "saved")
    shared = ("identity", "links", "health")
    assert [(r.id, r.device, r.verdict, r.reason) for r in theirs.results if r.area in shared] == [
        (r.id, r.device, r.verdict, r.reason) for r in ours.results if r.area in shared
    ]
    stated = {r.id: r for r in theirs.results if r.area == "environment"}
    assert stated["environment/python"].verdict is Verdict.PASS
    assert "environment/software" not in stated
