"""The doctor on logs of communication libraries and of torch's watchdog."""

from __future__ import annotations

import random
import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from portagpu.checks.collectives_doctor import (
    DoctorOptions,
    doctor,
    findings,
    known_findings,
    log_judgement,
    log_tables,
    settings,
)
from portagpu.checks.collectives_doctor.log_judgement import judge_logs
from portagpu.checks.collectives_doctor.logs import Job, read_log
from portagpu.facts.readings.model import FormatError
from portagpu.facts.vendors import Vendor, vendors
from portagpu.runs.results.run import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from portagpu.runs.results.run import Run

# in the form of logs of NCCL 2.10 to 2.27 and RCCL 2.22 (NVIDIA/nccl issues 352, 1126, 1231, 1516)
START = (
    "ncclCommInitRank comm 0x6a rank {0} nranks {1} cudaDev 0 nvmlDev 0 busId 5000 commId 0xe5 -"
)


def line(message: str, *, host: str = "node1", pid: int = 100, level: str = "INFO") -> str:
    place = "" if level == "INFO" else "transport/net.cc:12 "
    return f"{host}:{pid}:{pid + 7} [0] {place}NCCL {level} {message}"


def rank(number: int, of: int, *, host: str = "node1", complete: bool = True) -> list[str]:
    said = [
        line("NCCL version 2.27.7+cuda13.0", host=host, pid=100 + number),
        line(f"{START.format(number, of)} Init START", host=host, pid=100 + number),
    ]
    if complete:
        said.append(line(f"{START.format(number, of)} Init COMPLETE", host=host, pid=100 + number))
    return said


def judged(tmp_path: Path, *lines: str) -> Run:
    file = tmp_path / "job.log"
    file.write_text("\n".join(lines) + "\n")
    return doctor(DoctorOptions(paths=[file]))


def problems(run: Run) -> list[str]:
    return [r.id.rpartition("/")[2] for r in run.results if r.verdict is not Verdict.PASS]


def outcome_of(run: Run, finding: str) -> str:
    return next(r.reason for r in run.results if r.id.endswith(f"/{finding}"))


def test_a_log_says_who_is_there_and_over_what_they_talk(tmp_path: Path) -> None:
    run = judged(
        tmp_path,
        *rank(0, 2),
        *rank(1, 2, host="node2"),
        line("Bootstrap : Using eth0:10.0.0.1<0>"),
        line("Using network IB"),
        line("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"),
        line("NCCL_MIN_CTAS set by environment to 32."),
    )
    assert problems(run) == []
    assert outcome_of(run, "log") == (
        "lines of 2 of 2 ranks on 2 hosts; NCCL 2.27.7+cuda13.0; network IB; transports NET/IB; "
        "interface eth0; set: NCCL_MIN_CTAS=32"
    )


EVENTS = {
    "Channel 00/0 : 1[26000] -> 8[5000] [send] via NET/Socket/0 comm 0x3c nRanks 16": "sockets",
    "NET/IB : No device found.": "no-rdma-device",
    "group.cc:106 -> 2": "error-returned",
    "Failed to open libibverbs.so[.1]": "no-rdma-device",
    "Channel 01/0 : 9[1] -> 1[1] [send] via NET/IB/1": "no-gpudirect",
    "Channel 00/1 : 2[41000] -> 0[41000] [receive] via NET/IB/0/Shared": "no-gpudirect",
    "Could not enable P2P between dev 0(=41000) and dev 1(=81000)": "no-p2p",
    "Channel 00 : 0[41000] -> 1[81000] via SHM/direct/direct": "no-p2p",
    "NCCL_P2P_DISABLE set by environment to 1.": "p2p-turned-off",
    "NCCL_P2P_LEVEL set by environment to LOC": "p2p-turned-off",
    "NCCL_IB_DISABLE set by environment to 1.": "rdma-turned-off",
    "NCCL_SHM_DISABLE set by environment to 1.": "shm-turned-off",
    "NCCL_NVLS_ENABLE set by environment to 0.": "nvls-turned-off",
}
WARNINGS = {
    "Bootstrap : no socket interface found": "no-interface",
    "Call to connect returned Connection refused, retrying": "connect",
    "Net : Call to recv from 10.2.0.5<58355> failed : Broken pipe": "peer-closed",
    "Communicator does not support symmetric memory!": "symmetric-memory",
    "Allocation failed. No suitable space found to accommodate size=0x21": "symmetric-memory",
    "GIN VA signals are required, but the GIN plugin does not support them.": "device-api",
    "Cannot create device communicator: ncclDevCommRequirements_t argument must": "device-api",
    "NET/IB/GIN: Got completion from peer 10.2.0.5<1> with status=12 opcode=0": "rdma-error",
    "NET/IB: Fatal error. Detected 1 failed devices out of 1 devices": "rdma-error",
    "Net : Connection closed by remote peer node2<42830>": "peer-closed",
    "socketProgress: Connection closed by remote peer node2<42830>": "peer-closed",
    "NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0": "rdma-error",
    "NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129": "rdma-error",
    "Call to ibv_modify_qp failed with error Connection timed out": "rdma-error",
    "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory": "locked-memory",
    "Error while creating shared memory segment /dev/shm/nccl-UbzKZ9 (size 96)": "shared-memory",
    "Call to posix_fallocate failed : No space left on device": "shared-memory",
    "Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes": "shared-memory",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5000": "duplicate-device",
    "Message truncated : received 2048 bytes instead of 1024": "size-mismatch",
    "Cuda failure 802 'system not yet initialized'": "fabric",
    "Cuda failure 700 'an illegal memory access was encountered'": "device-error",
    "HIP failure 'unknown error'": "device-error",
    "NET/IB : Got async event : client reregistration": "rdma-event",
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152": "nvls",
    "failed to open CUDA IPC handle : 217 peer access is not supported": "no-peer-access",
    "hipIpcGetMemHandle failed : invalid argument": "import",
    "Error while attaching to shared memory segment /dev/shm/nccl-x (size 9), error: "
    "No such file or directory (2)": "shared-memory-missing",
    "Mismatched collective detected, please check your calls at rank 39": "collective-mismatch",
    "NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument": "network-plugin",
    "Socket recv failed while polling for opId=0x55": "proxy-failed",
    "[rocprofiler-sdk-rccl][2421] rocprofiler-register failed": "library-fallback",
    "Something failed that no table has, 12": "library-error",
    "HIP failure 'out of memory'": "out-of-memory",
    "Cuda failure 'invalid device function'": "not-built-for-device",
    "Cuda failure 98 'invalid device function'": "not-built-for-device",
    "CUDA driver version is insufficient for CUDA runtime version": "driver-too-old",
    "Cuda failure 'driver shutting down'": "used-after-end",
    "socketFinalizeAccept: wrong type 4 != 3": "bootstrap-mismatch",
    'Missing "iommu=pt" from kernel command line which can lead to system': "iommu-translates",
    'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can': "coarse-grain-pcie",
    "NUMA auto balancing enabled which can lead to variability": "numa-balancing",
    "MSCCL++: Cannot enable MSCCL++; environment is not MSCCL compatible": "mscclpp-left-out",
    "Something that no table has, 12": "library-warning",
}


@pytest.mark.parametrize("message", [*EVENTS, *WARNINGS])
def test_a_line_is_the_finding_that_it_means(tmp_path: Path, message: str) -> None:
    wanted = {**EVENTS, **WARNINGS}[message]
    level = "WARN" if message in WARNINGS else "INFO"
    run = judged(tmp_path, *rank(0, 2), *rank(1, 2), line(message, level=level))
    assert problems(run) == [wanted]
    assert outcome_of(run, wanted).startswith(f'"{message}"')
    assert "by rank 0 on node1" in outcome_of(run, wanted)


@pytest.mark.parametrize("finding", sorted({*EVENTS.values(), *WARNINGS.values()}))
def test_every_finding_of_a_line_has_cause_remedy_and_source(finding: str) -> None:
    kind = known_findings()[finding]
    assert kind.cause
    assert kind.remedy
    of_the_log = {"library-warning", "library-error", "library-fallback"}
    of_source_code = {"rdma-event": "rdma-core: "}
    wanted = of_source_code.get(finding, "https://")
    assert kind.source.startswith(wanted) or finding in of_the_log


def test_every_finding_of_a_vendors_table_comes_from_a_line_here() -> None:
    seen = {*EVENTS.values(), *WARNINGS.values(), "loopback", "no-network-plugin", "no-dmabuf"}
    for vendor in vendors().values():
        file = vendor.tables / "doctor.toml" if vendor.tables else None
        if file is not None and file.is_file():
            made = tomllib.loads(file.read_text("utf-8"))
            assert {each["finding"] for each in made.get("event", ())} <= seen, vendor.name
            assert all(e["finding"] in known_findings() for e in made.get("event", ()))


def test_a_missing_plugin_matters_only_where_sockets_carry_the_data(tmp_path: Path) -> None:
    missing = line("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")
    assert problems(judged(tmp_path, *rank(0, 1), missing)) == []
    sockets = line("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    assert problems(judged(tmp_path, *rank(0, 1), missing, sockets)) == [
        "sockets",
        "no-network-plugin",
    ]


def test_the_loopback_matters_only_between_machines(tmp_path: Path) -> None:
    lo = line("Bootstrap : Using lo:127.0.0.1<0>")
    assert problems(judged(tmp_path, *rank(0, 2), *rank(1, 2), lo)) == []
    run = judged(tmp_path, *rank(0, 2), *rank(1, 2, host="node2"), lo)
    assert problems(run) == ["loopback"]


def test_versions_that_differ_name_the_rank(tmp_path: Path) -> None:
    lines = [each for number in range(3) for each in rank(number, 3)]
    lines[6] = lines[6].replace("2.27.7", "2.26.2")
    run = judged(tmp_path, *lines)
    assert problems(run) == ["library-version"]
    assert outcome_of(run, "library-version") == (
        "rank 2 on node1 has NCCL 2.26.2+cuda13.0, and most have 2.27.7+cuda13.0"
    )


def test_a_communicator_that_is_never_complete_names_who_is_missing(tmp_path: Path) -> None:
    lines = [each for number in (0, 1, 3) for each in rank(number, 4, complete=False)]
    run = judged(tmp_path, *lines)
    assert problems(run) == ["creation"]
    assert "ranks 0, 1 and 3 began to create communicator 0xe5 of 4 ranks" in outcome_of(
        run, "creation"
    )
    assert outcome_of(run, "creation").endswith("rank 2 did not begin it here")
    assert run.culprit == "rank 2"


# ---- torch's watchdog: pytorch/pytorch#118369, NVIDIA/nccl#1409


def timeout(rank: int, number: int, operation: str = "ALLREDUCE", given: int = 8) -> str:
    return (
        f"[rank{rank}]:[E816 01:45:40.183 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, "
        f"NumelIn={given}, NumelOut={given}, Timeout(ms)=600000) ran for 600026 milliseconds "
        "before timing out."
    )


def status(rank: int, enqueued: int) -> str:
    return (
        f"[rank{rank}]:[E816 01:45:41.1 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank {rank}] "
        "Received a dump signal due to a collective timeout from rank 0 and we will try our best "
        f"to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: "
        f"{enqueued}."
    )


def test_the_watchdog_says_which_rank_called_something_else(tmp_path: Path) -> None:
    run = judged(tmp_path, timeout(0, 80078), timeout(1, 80078, "BROADCAST"), timeout(2, 80078))
    assert problems(run) == ["operation", "watchdog"]
    assert run.culprit == "rank 1"
    assert "ranks 0 and 2 in ALLREDUCE of 8 elements" in outcome_of(run, "operation")


def test_the_watchdog_says_which_rank_had_another_size(tmp_path: Path) -> None:
    run = judged(tmp_path, timeout(0, 5), timeout(1, 5), timeout(2, 5, given=9))
    assert problems(run) == ["shape", "watchdog"]
    assert run.culprit == "rank 2"


def test_the_watchdog_says_which_rank_did_not_come(tmp_path: Path) -> None:
    lines = [each for number in range(3) for each in rank(number, 3)]
    run = judged(tmp_path, *lines, timeout(0, 11), timeout(2, 11), status(0, 11), status(1, 10))
    assert problems(run) == ["behind", "watchdog"]
    assert run.culprit == "rank 1"
    assert "rank 1 began number 10 of PG 0 (default_pg) last, and rank 0" in outcome_of(
        run, "behind"
    )
    assert "rank 1 did not time out: look there first" in outcome_of(run, "watchdog")
    assert "after 600 s" in outcome_of(run, "watchdog")


CALL = "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float"


@pytest.mark.parametrize(
    ("other", "finding"),
    [
        (CALL.replace("ALLREDUCE", "REDUCE").replace("[4]", "[5]"), "operation"),
        (CALL.replace("[4]", "[5]").replace("Float", "Half"), "shape"),
        (CALL.replace("Float", "Half").replace("=7", "=8"), "dtype"),
        (CALL.replace("=7", "=8"), "behind"),
        # they differ in what is not read, as the devices, which torch prints at the end
        (CALL, "collective-mismatch"),
        # without a number, as of an older torch, nobody knows who is late
        (CALL.removeprefix("SequenceNumber=7, "), "collective-mismatch"),
    ],
)
def test_two_fingerprints_differ_in_the_first_that_both_state(
    tmp_path: Path, other: str, finding: str
) -> None:
    # torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp
    said = "Rank {} is running collective: CollectiveFingerPrint({})"
    text = f"Detected mismatch between collectives on ranks. {said.format(0, CALL)}, but "
    assert problems(judged(tmp_path, f"{text}{said.format(1, other)}.")) == [finding]


@pytest.mark.parametrize(
    ("said", "finding"),
    [
        (
            (
                "RuntimeError: [/w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
                "2000ms for recv operation to complete"
            ),
            "gloo-timeout",
        ),
        (
            (
                "[enforce fail at /w/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
                "op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is there a "
                "distributed collective mismatch in your code?"
            ),
            "gloo-mismatch",
        ),
        (
            (
                "RuntimeError: [/w/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
                "[127.0.0.1]:4711"
            ),
            "gloo-closed",
        ),
        (
            (
                "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms "
                "while trying to connect to (10.0.0.9, 29500)."
            ),
            "store",
        ),
    ],
)
def test_gloo_and_the_store_are_read_too(tmp_path: Path, said: str, finding: str) -> None:
    assert problems(judged(tmp_path, "Traceback:", said)) == [finding]


def test_prefixes_of_launchers_do_not_hide_a_line(tmp_path: Path) -> None:
    socket = line("Channel 00/0 : 1[2] -> 8[5] [send] via NET/Socket/0")
    for prefix in (" 0: ", "[1,3]<stdout>:", "(Worker pid=927) ", "[2025-08-22 17:44:36] "):
        assert problems(judged(tmp_path, prefix + socket)) == ["sockets"], prefix


def test_a_text_that_is_not_a_log_is_not_judged(tmp_path: Path) -> None:
    run = judged(tmp_path, "root:x:0:0:root:/root:/bin/bash")
    assert problems(run) == ["no-known-line"]
    assert run.verdict is Verdict.INCONCLUSIVE
    with pytest.raises(FormatError, match="its format is not known"):
        read_log("", Job())
    with pytest.raises(FormatError, match="its format is not known"):
        read_log("".join(map(chr, range(256))), Job())


@pytest.mark.parametrize(
    ("said", "finding"),
    [
        ("RuntimeError: Operation timed out!", "wait-timeout"),
        ("portagpu.base.errors.RankLost: rank 1 did not come within 4 s, rank 0 did", "rank-lost"),
        (
            "[rank1]: portagpu.base.errors.CollectiveMismatch: rank 1 called barrier, rank 0 none",
            "call-mismatch",
        ),
    ],
)
def test_errors_of_ranks_in_a_job_s_output_are_read(
    tmp_path: Path, said: str, finding: str
) -> None:
    run = judged(tmp_path, "Traceback (most recent call last):", said)
    assert problems(run) == [finding]
    assert run.verdict is Verdict.FAIL


def test_a_log_that_breaks_off_or_is_damaged_is_read_as_far_as_it_goes() -> None:
    chance = random.Random(7)  # noqa: S311 - seeded on purpose
    whole = "\n".join(
        [
            *rank(0, 2),
            timeout(0, 5),
            status(1, 4),
            *[line(each, level="WARN") for each in WARNINGS],
            *[line(each) for each in EVENTS],
        ]
    )
    for end in range(0, len(whole), 37):
        text = list(whole[:end])
        for _ in range(end // 500):
            text[chance.randrange(len(text))] = chr(chance.randrange(1, 300))
        job = Job()
        try:
            read_log("".join(text), job)
        except FormatError:
            assert end < 100
            continue
        for finding in judge_logs(job):
            assert finding.id in known_findings()
            assert finding.evidence.isprintable()


def test_a_hostile_line_is_cut_and_refused() -> None:
    for each in ("a:" * 200_000, "1" * 400_000, " via NET/" * 50_000, "[Rank 1] " * 50_000):
        with pytest.raises(FormatError):
            read_log(each, Job())


def test_a_log_in_the_middle_of_junk_is_read(tmp_path: Path) -> None:
    chance = random.Random(3)  # noqa: S311 - seeded on purpose
    junk = chance.randbytes(1 << 16).replace(b"\x80", b"")
    said = line("NCCL_IB_DISABLE set by environment to 1.").encode()
    file = tmp_path / "job.log"
    file.write_bytes(b"x" + junk + b"\n" + said + b"\n" + junk)
    assert problems(doctor(DoctorOptions(paths=[file]))) == ["rdma-turned-off"]


ACME = """
[[line]]
pattern = '^acme (?P<host>\\w+)/(?P<pid>\\d+) (?P<level>[A-Z]+) (?P<message>.*)'
[[fact]]
library = "ACCL"
pattern = '^ACCL (?P<version>[\\d.]+)'
[[event]]
finding = "acme-melted"
pattern = '^the link melted'
[[finding]]
id = "acme-melted"
verdict = "FAIL"
means = "A link melted."
cause = "heat"
remedy = "cool it"
source = "https://acme.example/accl"
"""


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Adds a vendor's table, and returns why it was left out."""
    caches = (
        log_tables.patterns,
        findings.known_findings,
        findings.own_table,
        settings._tables,
        log_judgement._order,
    )

    def add(text: str) -> list[str]:
        table = tomllib.loads(text)
        left_out: list[str] = []
        for module in (log_tables, findings, settings):
            monkeypatch.setattr(module, "tables", lambda _name: {"acme": table})
            monkeypatch.setattr(
                module, "leave_out_table", lambda *each: left_out.append(str(each[-1]))
            )
        monkeypatch.setattr(settings, "vendors", lambda: {"acme": Vendor(name="acme")})
        for each in caches:
            each.cache_clear()
        for each in caches:
            each()
        return left_out

    yield add
    monkeypatch.undo()
    for each in caches:
        each.cache_clear()


def test_another_vendors_table_is_read_like_ours(
    tmp_path: Path, acme: Callable[[str], list[str]]
) -> None:
    assert acme(ACME) == []
    run = judged(tmp_path, "acme n1/7 INFO ACCL 1.2", "acme n1/7 WARN the link melted")
    assert problems(run) == ["acme-melted"]
    assert "ACCL 1.2" in outcome_of(run, "log")
    assert run.results[1].extra["remedy"] == "cool it"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[[event]]\nfinding = "nothing"\npattern = "x"', "unknown finding 'nothing'"),
        ('[[event]]\nfinding = "sockets"\npattern = "("', "unknown finding|unterminated"),
        ('[[line]]\npatterns = "x"', "pattern"),
        ("[[fact]]\npattern = 3", "first argument"),
        ('[[variable]]\nname = "X"\nfinding = "nothing"\nwhy = ""', "unknown finding"),
        ('[[interfaces]]\nvariables = "X"', "variables"),
        ('[[finding]]\nid = "x"', "verdict"),
        ('only_here = "("', "unterminated"),
    ],
)
def test_a_broken_table_of_a_vendor_is_left_out_and_named(
    tmp_path: Path, acme: Callable[[str], list[str]], wrong: str, said: str
) -> None:
    left_out = acme(wrong)
    assert len(set(left_out)) == 1
    assert re.search(said, left_out[0])
    gloo = "gloo/transport/tcp/pair.cc:1] Connection closed by peer"
    assert problems(judged(tmp_path, gloo)) == ["gloo-closed"]


def test_lines_without_a_known_word_change_nothing(tmp_path: Path) -> None:
    # the lines of a program between those of the library, also next to a line that is waited for
    library = (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, internal error\n"
        "[rank0]: Last error:\n[rank0]: step 7 of 9\n"
        "node1:7:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    )
    program = "".join(f"step {n} of 90\n[rank0]: step {n} of 9\n" for n in range(20))
    alone, among = Job(), Job()
    read_log(library, alone)
    read_log(program + library + program, among)
    assert among == alone
    assert [seen.line for seen in alone.errors.values()][-1] == "step 7 of 9"
