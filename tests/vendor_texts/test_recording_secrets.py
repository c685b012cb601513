"""Secrets of every kind in every place that a recording keeps: none is in what is written."""

from __future__ import annotations

import json
import os
import random
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape, quoteattr

import pytest

from portagpu.checks.recordings.anonymous import Anonymizer, identities
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import read_text
from portagpu.facts.host.limits import _CGROUP_WORDS
from portagpu.facts.readings.model import FormatError, to_document
from portagpu.machine.inventory.sources import CommandOutput
from tests.conftest import ROOT
from tests.support.fuzz_formats import EXPECTED, RECORDINGS
from tests.support.read_parts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED: Final = 20260401
_RANDOM: Final = random.Random(SEED)  # noqa: S311 - seeded on purpose
UUID: Final = "GPU-11111111-2222-3333-4444-000000000001"


def needle(letters: str = string.ascii_letters + string.digits, length: int = 12) -> str:
    """Something that stands nowhere else."""
    return "".join(_RANDOM.choice(letters) for _ in range(length))


def number(length: int = 13) -> str:
    return "9" + needle(string.digits, length - 1)


def hexadecimal(length: int) -> str:
    return needle("0123456789abcdef", length)


def _by_form() -> Iterator[tuple[str, str, str]]:
    """(kind, text, what must not be found of it): known by its form, wherever it stands."""
    prefixes = (
        *("sk-", "sk-ant-api03-", "sk-proj-", "hf_", "ghp_", "gho_", "github_pat_", "glpat-"),
        *("xoxb-", "xoxp-", "xapp-", "AKIA", "ASIA", "AIza", "nvapi-", "pypi-", "npm_", "r8_"),
        *("sk_live_", "rk_test_", "dop_v1_", "dckr_pat_", "shpat_", "gsk_", "pplx-", "xai-"),
        *("lin_api_", "ntn_", "sbp_", "glsa_", "NRAK-", "ATATT3", "sq0atp-", "tskey-"),
    )
    for prefix in prefixes:
        key = needle(length=20)
        yield "key", f"{prefix}{key}", key
    for scheme in ("postgres", "mysql", "mongodb+srv", "redis", "amqp", "s3", "http", "ssh", "nfs"):
        password, host = needle(), needle(string.ascii_lowercase)
        yield "url", f"{scheme}://svc:{password}@{host}.acme.example:5432/db", password
        yield "url", f"{scheme}://{host}/bucket", host
    for name in (
        "password",
        "api_key",
        "AWS_SECRET_ACCESS_KEY",
        "--token",
        "HF_TOKEN",
        "db-passwd",
    ):
        for joint in ("=", ": ", " = ") if not name.startswith("--") else ("=", " "):
            value = needle()
            yield "given", f"{name}{joint}{value}", value
    for header in ("Authorization: Bearer ", "Authorization: Basic ", "bearer "):
        value = needle()
        yield "header", f"{header}{value}", value
    for _ in range(3):
        body = needle(length=24)
        yield "token", f"eyJ{needle()}.eyJ{body}.{needle()}", body
    body = needle(length=64)
    pem = "RSA PRIVATE KEY"
    yield "pem", f"-----BEGIN {pem}----- {body} -----END {pem}-----", body
    yield "key", needle(string.ascii_letters, 39) + "aB7", ""
    for path in ("/home/{}/train.py", "/scratch/{}/x", "~/{}/run", "/mnt/{}/y", "/opt/{}/bin/z"):
        name = needle(string.ascii_lowercase)
        yield "path", path.format(name), name
    for host in ("{}.cluster.local", "{}.svc", "{}.internal", "gpu-{}.corp"):
        name = needle(string.ascii_lowercase)
        yield "host", host.format(name), name
    for _ in range(3):
        user, domain = needle(string.ascii_lowercase), needle(string.ascii_lowercase)
        yield "mail", f"{user}@{domain}.example", domain
        address = f"10.{_RANDOM.randrange(10, 255)}.{_RANDOM.randrange(10, 255)}.217"
        yield "ipv4", address, address
        groups = [f"{_RANDOM.randrange(4096, 65536):x}" for _ in range(4)]
        yield "ipv6", f"2001:db8::{':'.join(groups)}", ":".join(groups)
        pairs = ":".join(hexadecimal(2) for _ in range(6))
        yield "mac", pairs, pairs
        guid = ":".join(hexadecimal(4) for _ in range(4))
        yield "guid", guid, guid
        uuid = "-".join(hexadecimal(length) for length in (8, 4, 4, 4, 12))
        yield "uuid", uuid, uuid
        serial = number()
        yield "serial", f"serial number {serial}", serial
    for variable in ("WANDB_PROJECT", "SLURM_JOB_NAME", "MLFLOW_RUN"):
        value = needle()
        yield "environment", f"{variable}={value}", value


FORMS: Final = tuple((kind, text, part or text) for kind, text, part in _by_form())
KNOWN: Final = tuple(
    (kind, needle(string.ascii_lowercase)) for kind in ("host", "user", "environment") for _ in "ab"
)
ANYWHERE: Final = (*FORMS, *((kind, text, text) for kind, text in KNOWN))
OF_PROCESSES: Final = tuple(
    (kind, text.format(name), name)
    for kind, text in (
        *(("process", each) for each in ("{}", "python-{}", "ray::{}", "{} (deleted)", "a, {}")),
        ("command", "./{} --lr 1"),
        ("command", "python -m {}.train"),
    )
    for name in [needle(string.ascii_lowercase, 9)]
)
GROUPS: Final = tuple(
    (kind, text.format(name), name)
    for kind, text in (
        ("slurm", "job_{}"), ("slurm", "slurmstepd-{}.scope"), ("user", "user-{}.slice"),
        ("service", "{}.service"), ("pod", "kubepods-burstable-pod{}.slice"),
        ("container", "docker-{}.scope"), ("container", "cri-containerd-{}.scope"),
        ("container", "libpod-{}"), ("tenant", "{}"),
    )
    for name in [needle(string.ascii_lowercase)]
)  # fmt: skip
SERIALS: Final = tuple(("serial", number(), "") for _ in range(4))
EVERY: Final = (*ANYWHERE, *OF_PROCESSES, *GROUPS, *((k, t, t) for k, t, _ in SERIALS))


def nvidia_xml() -> str:
    free = "".join(
        f"<note>{escape(text)}</note><a b={quoteattr(text)}/>" for _, text, _ in ANYWHERE
    )
    infos = "".join(
        f"<process_info><pid>47110815</pid><type>C</type><process_name>{escape(text)}</process_name>"
        f"</process_info>"
        for _, text, _ in (*OF_PROCESSES, *ANYWHERE)
    )
    serials = "".join(f"<serial>{text}</serial>" for _, text, _ in SERIALS)
    hidden = "".join(f"<!-- {text} --><x>&#47;home&#47;{text}</x>" for _, text in KNOWN)
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        "<nvidia_smi_log><driver_version>535.104.05</driver_version>"
        "<attached_gpus>1</attached_gpus>\n"
        f'<gpu id="00000000:07:00.0"><product_name>NVIDIA H200</product_name><uuid>{UUID}</uuid>'
        f"{free}{hidden}{serials}"
        f"<processes>{infos}</processes><accounted_processes>{infos}</accounted_processes>"
        "<vbios_version>96.00.5E.00.01</vbios_version></gpu></nvidia_smi_log>\n"
    )


def lines_of(secrets: Any) -> str:
    return "\n".join(f"  note {at} {text} end" for at, (_, text, _) in enumerate(secrets))


def nvidia_text() -> str:
    rows = "\n".join(
        f"|    0   N/A  N/A      47110815      C   {text:<30}  1024MiB |"
        for _, text, _ in OF_PROCESSES
    )
    return (
        "\n==============NVSMI LOG==============\n\nTimestamp                       : now\n"
        "Driver Version                  : 535.104.05\n\nAttached GPUs                   : 1\n"
        "GPU 00000000:07:00.0\n    Product Name                    : NVIDIA H200\n"
        f"    Serial Number                   : {SERIALS[0][1]}\n"
        f"    GPU UUID                        : {UUID}\n{lines_of(ANYWHERE)}\n    Processes\n"
        + "".join(
            f"        Process ID                  : 47110815\n            Name        : {text}\n"
            for _, text, _ in OF_PROCESSES
        )
        + "+-----+\n| Processes:          |\n|  GPU   GI   CI    PID   Type   Process name   |\n"
        f"|=====|\n{rows}\n+-----+\n"
    )


def amd_json() -> str:
    processes = [
        {
            "process_info": {
                "name": text,
                "pid": 47110815,
                "mem_usage": {"value": 1, "unit": "B"},
            }
        }
        for _, text, _ in OF_PROCESSES
    ]
    record_of = {
        "gpu": 0,
        "asic": {"market_name": "MI300X", "asic_serial": f"0x{SERIALS[1][1]}"},
        "board": {"product_serial": SERIALS[2][1], "model_number": "102-G30213-00"},
        "bus": {"bdf": "0000:83:00.0", "max_pcie_width": 16},
        "process_list": processes,
        "notes": {f"on {text}": text for _, text, _ in ANYWHERE},
        "list": [text for _, text, _ in ANYWHERE],
        "fw": {"version": "10.11.12.13"},
    }
    return json.dumps([record_of, {"gpu": 1, "name": OF_PROCESSES[0][1], "pid": 47110815}])


def amd_text() -> str:
    rows = "\n".join(f"47110815\t{text}\t1\t1024\t0\t0" for _, text, _ in OF_PROCESSES)
    listed = "".join(
        f"    PROCESS_INFO:\n        NAME: {text}\n        PID: 47110815\n"
        for _, text, _ in OF_PROCESSES
    )
    return (
        "GPU: 0\n    BDF: 0000:83:00.0\n    UUID: afff74a1-0000-1000-8054-e92b0a5d57c8\n"
        f"{listed}GPU: 1\n    BDF: 0000:84:00.0\n    UUID: 0aff74a1-0000-1000-8054-e92b0a5d57c8\n"
        f"{lines_of(ANYWHERE)}\n\n"
        f"KFD process information:\nPID\tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA\tCU\n{rows}\n\n"
        "gpu,name,pid,gtt_mem\n" + "\n".join(f"0,{text},47110815,1" for _, text, _ in OF_PROCESSES)
    )


def printed() -> list[CommandOutput]:
    topo = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0\n"
    link = f"GPU 0: NVIDIA H200 (UUID: {UUID})\n\t Link 0: 26.562 GB/s\n"
    return [
        CommandOutput(("nvidia-smi", "-q", "-x"), nvidia_xml()),
        CommandOutput(("nvidia-smi", "-q"), nvidia_text()),
        CommandOutput(("nvidia-smi", "topo", "-m"), f"{topo}\n{lines_of(ANYWHERE)}\n"),
        CommandOutput(("nvidia-smi", "nvlink", "-s"), f"{link}{lines_of(ANYWHERE)}\n"),
        CommandOutput(("amd-smi", "static", "--json"), amd_json()),
        CommandOutput(("amd-smi", "list"), amd_text()),
        CommandOutput(("rocminfo",), f"{ROCMINFO}{lines_of(ANYWHERE)}\n"),
        # a tool that no reader knows: nothing of it is kept but that it was there
        CommandOutput(("third-tool",), lines_of(EVERY)),
        *(CommandOutput(("smi", f"--at={text}"), link) for _, text, _ in ANYWHERE),
        *(
            CommandOutput(("smi", f"{n}"), "", f"it said {text}")
            for n, (_, text, _) in enumerate(ANYWHERE)
        ),
    ]


ROCMINFO: Final = """ROCk module is loaded
=====================
HSA System Attributes
=====================
Runtime Version:         1.1
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    gfx942
  Uuid:                    GPU-0123456789abcdef
  Marketing Name:          AMD Instinct MI300X
  Vendor Name:             AMD
  Device Type:             GPU
  BDFID:                   33536
  Compute Unit:            304
"""


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """(where, text) of every name, link's target and file below ``folder``."""
    for here, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(here) / name
            where = str(path.relative_to(folder))
            yield f"the name {where!r}", name
            if path.is_symlink():
                yield f"the target of {where}", str(path.readlink())
            elif path.is_file():
                yield where, path.read_text("utf-8", "replace")


def test_every_secret_and_place_is_of_the_test() -> None:
    """Which figures the test above stands for: a place that loses its secrets tests nothing."""
    for output in printed():
        if output.text and output.command[0] not in ("smi", "third-tool"):
            held = sum(part in output.text for _, _, part in EVERY)
            assert held > len(FORMS) // 2, output.command
            read_text(output.text)
    assert len({part for _, _, part in EVERY}) == len(EVERY) > 100


FIXTURES: Final = ROOT / "tests" / "vendor_texts" / "formats"
ALL_OF_PROCESSES: Final = frozenset({"compute-apps.csv", "mi300x-process-csv.txt"})
"""Outputs of which nothing is left."""
PROMPTS: Final = frozenset({"prompts.txt", "MANIFEST.md"})
"""What no tool prints: the prompt, with a user and a host in it, says where a section begins."""
SAVED: Final = sorted(
    path
    for folder in (FIXTURES, RECORDINGS)
    for path in folder.rglob("*")
    if path.is_file() and path.name not in (*PROMPTS, EXPECTED) and path.stat().st_size < 1 << 20
)
CHANGED: Final = re.compile(r"\.(?:processes|process_list|line)\Z|serial\Z|guid\Z")
"""What is taken out of readings, and lines of logs with their processes."""


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from flat(item, f"{path}.{key}")
    else:
        yield path, value


def test_what_a_tool_printed_is_read_the_same_without_what_identifies() -> None:
    """Addresses of PCI, registers, versions and dates look like what is taken out, and stay."""
    read = 0
    for path in SAVED:
        text = decode_text(path.read_bytes())
        try:
            found = read_all(text)
        except FormatError:
            continue
        read += 1
        clean = Anonymizer((), identities([found])).text(text)
        if path.name in ALL_OF_PROCESSES:
            assert not clean.strip("\n$ ") or "pid" not in clean, path
            continue
        before, after = (dict(flat(to_document(each))) for each in (found, read_all(clean)))
        # the readings of processes alone go as a whole
        wanted = [key for key in before if CHANGED.search(key) is None]
        ours = [key for key in wanted if key in after]
        assert len(ours) > len(wanted) * 0.85, f"{path}: {len(ours)} of {len(wanted)} are left"
        differing = [(key, before[key], after[key]) for key in ours if before[key] != after[key]]
        assert not differing, f"{path}: {differing[:3]}"
    assert read > 15


def test_cleaning_twice_is_cleaning_once() -> None:
    for output in printed():
        if output.text and output.command[0] not in ("smi", "third-tool"):
            once = Anonymizer(KNOWN).text(output.text)
            assert Anonymizer(KNOWN).text(once) == once, output.command


@pytest.mark.parametrize("word", _CGROUP_WORDS)
def test_a_numbered_group_states_its_kind_of_container(word: str) -> None:
    group = Anonymizer().group(f"x-{word}-acme.slice")
    assert word in group
    assert "acme" not in group
    assert not any(each in group for each in _CGROUP_WORDS if each not in word)


def test_a_process_that_calls_itself_as_it_likes_is_left_out_whole() -> None:
    """A name may hold the end of a line, of a table, or of an element."""
    text = nvidia_text()
    for name in ("a\nacme-llm", "a |\nacme-llm |", "Foo: x\n    acme-llm"):
        changed = text.replace(OF_PROCESSES[0][1], name)
        assert "acme-llm" not in Anonymizer().text(changed), name
    xml = nvidia_xml().replace(escape(OF_PROCESSES[0][1]), "a\nacme-llm &lt;/processes&gt;")
    assert "acme-llm" not in Anonymizer().text(xml)


def test_an_output_that_breaks_off_goes_on_breaking_off() -> None:
    for text in (nvidia_xml(), amd_json()):
        broken = text[: len(text) * 2 // 3]
        clean = Anonymizer(KNOWN).text(broken)
        assert any("breaks off" in each for each in read_all(clean).problems)
        found = [part for _, _, part in EVERY if part in clean]
        assert not found, found


def test_what_stands_around_the_beginning_of_xml_is_cleaned_too() -> None:
    said = "Serial Number : 1652acme7"
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "x.dtd">\n'
    root = "<nvidia_smi_log><driver_version>1.2</driver_version></nvidia_smi_log>\n"
    warning = "Unable to determine the device handle for GPU2: 0000:4B:00.0: Unknown Error\n"
    for text in (f"{said}\n{head}{root}", f"{head}{said}\n{root}", f"x {head}{said}\n{root}"):
        assert "1652acme7" not in Anonymizer().text(text), text
    clean = Anonymizer().text(warning + head + root)
    assert "&lt;" not in clean
    assert clean.startswith(warning)
