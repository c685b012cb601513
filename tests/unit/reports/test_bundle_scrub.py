"""Scrubbing: what identifies is taken out of every text, and what does not is left."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.base.redact.names import machine_names
from portagpu.base.redact.scrub import MAX_TEXT, find_identifying, scrub
from portagpu.runs.results.run import Run
from tests.support.bundle_samples import full_run
from tests.support.result_samples import failing, passing, stopped

if TYPE_CHECKING:
    from pathlib import Path

KNOWN: Final = (
    ("host", "node-07.acme.example"),
    ("host", "node-07"),
    ("host", "acme.example"),
    ("user", "jdoe"),
    ("path", "/srv/my data"),
    ("environment", "s3cr3t-queue"),
)

BY_FORM: Final = {
    "path": [
        "/home/someone/run.py",
        "/home/someone",
        "~/results/run",
        "~someone/results",
        "/scratch/project",
        "//home//someone/x",
        "-I/home/someone/include",
        "PosixPath('/opt/acme/thing')",
    ],
    "uuid": [
        "GPU-9f8e7d6c-4e5f-6071-8293-a4b5c6d7e8f9",
        "MIG-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
        "0A1B2C3D-4E5F-6071-8293-A4B5C6D7E8F9",
        "GPU-3f1d9a7c5b2e4680",
    ],
    "serial": [
        "serial number: 1652823054567",
        "Serial=PCB043123-0178",
        "asset tag AT-00412",
        "ASIC_SERIAL: 0x4F2E00412",
    ],
    "address": [
        "10.23.4.5",
        "10.23.4.5:29500",
        "2001:db8::8a2e:370:7334",
        "fe80::1ff:fe23:4567:890a",
        "00:1b:44:11:3a:b7",
        "506b:4b03:00cb:a1f4",
        "someone@acme.example",
        "someone@node07",
    ],
    "host": [
        "node07.cluster.local",
        "ip-10-23-4-5",
        "node07:4121:4177 [0] NCCL INFO Bootstrap",
        "hostname: node07",
    ],
    "secret": [
        "hf_AbCdEfGhIjKlMnOpQrStUvWx",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "--token swordfish",
        "--api-key=swordfish",
        "password: swordfish",
        "AWS_SECRET_ACCESS_KEY=swordfish",
        "Authorization: Bearer abc.def",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY1",
    ],
    "url": [
        "http://proxy.acme.example:3128",
        "https://someone:swordfish@github.com/acme/x",
        "s3://acme-bucket/key",
        "tcp://node07:29500",
        "https://github.com/acme/x?access=swordfish",
    ],
    "environment": ["HTTP_PROXY=node07", "NCCL_SOCKET_IFNAME='ib-acme'"],
}
"""Kind -> texts that identify by their form. Written after what machines print; all are made up."""

HARMLESS: Final = (
    "18.4 GB/s over 1/(n-1) of S / t x 1.5, B(n-1)/n",
    "torch 2.13.0+cpu, a cpu build; driver 580.65.06; RCCL 2.27.7",
    "memory/copy[float32-n4] on 0000:c1:00.0 at 10:15:00",
    "c10::Error in at::native::add, ::1 and 127.0.0.1:29500",
    "Docker's default is 64 MiB; docker --shm-size=1g, /dev/shm and /proc/sys/kernel/osrelease",
    "devices may be hidden by CUDA_VISIBLE_DEVICES='0,1'; HSA_OVERRIDE_GFX_VERSION=11.0.0",
    "https://github.com/pytorch/pytorch/issues/92315",
    "the values of 6 measures were checked before a time was kept; tokens per second",
    "AMD Instinct MI300X (gfx942:sramecc+:xnack-), 191.7 GiB, serial execution",
    "wrote 0x5555555555555555 and read 0xaa",
    "sha256 2f35afb1628a526ea54ca129da4c1ad7d8ab315dfa56349441dd5ce1a50c185a",
    "cuda:3 and rank 2 are unlike their 7 peers; 45 % at 3.5 @ 2100 MHz",
)


@pytest.mark.parametrize(("kind", "text"), [(k, t) for k, ts in BY_FORM.items() for t in ts])
def test_what_identifies_by_its_form_is_replaced(kind: str, text: str) -> None:
    for sentence in (text, f"it said {text}", f"it said {text} and stopped"):
        found = scrub({"reason": sentence})
        assert kind in found.counts, f"{sentence!r} became {found.document}"
        left = re.sub(r"<[a-z]+-\d+>", "", json.dumps(found.document)).lower()
        for word in (
            "someone",
            "swordfish",
            "node07",
            "acme",
            "4e5f-6071",
            "165282",
            "10.23",
            "db8",
        ):
            assert word not in left, f"{word} is left in {found.document}"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_says_nothing_of_a_machine_is_left(text: str) -> None:
    assert scrub({"reason": text}, KNOWN).document == {"reason": text}


SECRETS: Final = (
    "NODE-07",
    "node-07.acme.example",
    "jdoe",
    "/srv/my data/x",
    "s3cr3t-queue",
    "GPU-9f8e7d6c-4e5f-6071-8293-a4b5c6d7e8f9",
    "10.23.4.5",
    "/home/jdoe/x",
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "jdoe@node-07",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_planted_as_a_key_is_found(secret: str) -> None:
    found = scrub({"extra": {secret: 1, "values": {f"on {secret}": [1]}}}, KNOWN)
    assert secret not in json.dumps(found.document)
    assert len(found.document["extra"]) == 2


@pytest.mark.parametrize("sample", [passing, failing, stopped, full_run])
def test_scrubbing_twice_changes_nothing(sample: Any) -> None:
    once = scrub(sample().to_json(), KNOWN).document
    assert scrub(once, KNOWN).document == once
    assert scrub(once).document == once
    assert not list(find_identifying(once))
    Run.from_json(once)


@pytest.mark.parametrize("text", [t for texts in BY_FORM.values() for t in texts])
def test_what_is_left_of_any_form_is_not_taken_for_something(text: str) -> None:
    document = {"reason": f"{text}, {text}/x and '{text}'"}
    assert list(find_identifying(document))
    assert not list(find_identifying(scrub(document).document))


def test_nothing_of_the_document_itself_is_changed() -> None:
    document = full_run().to_json()
    before = copy.deepcopy(document)
    scrub(document, KNOWN)
    assert document == before


def test_devices_stay_as_many_as_they_are() -> None:
    first, second = (f"GPU-0a1b2c3d-0000-4000-8000-00000000000{digit}" for digit in "12")
    found = scrub(
        {
            "devices": [{"uuid": first}, {"uuid": second}, {"uuid": None}],
            "reason": f"{second.upper()} and {first[4:]} differ",
        }
    ).document
    assert found["devices"] == [{"uuid": "<uuid-1>"}, {"uuid": "<uuid-2>"}, {"uuid": None}]
    assert found["reason"] == "<uuid-2> and <uuid-1> differ"


def test_a_value_under_an_identifying_key_is_found_elsewhere_too() -> None:
    found = scrub(
        {"facts": {"serial": "PCB0431230178", "guid": 4711}, "reason": "PCB0431230178 bad"}
    )
    assert found.document == {
        "facts": {"serial": "<serial-1>", "guid": "<uuid-1>"},
        "reason": "<serial-1> bad",
    }
    assert found.counts == {"serial": 2, "uuid": 1}


@pytest.mark.parametrize(
    "key", ["Serial Number", "ASIC_SERIAL", "Unique ID", "gpu-uuid", "hostname"]
)
def test_tools_spell_identifying_keys_in_their_own_ways(key: str) -> None:
    assert scrub({key: "k7"}).document[key] in ("<serial-1>", "<uuid-1>", "<host-1>")
    assert scrub({key: "N/A"}).document[key] == "N/A", "nothing is not a serial number"
    assert scrub({key: None}).document[key] is None


def test_the_command_keeps_only_what_this_package_defines() -> None:
    command = [
        *("portagpu", "bringup", "--full", "--backend", "rocm", "--target", "amd-mi300x"),
        *("--out", "results of jdoe", "--json=-", "HF_TOKEN=x", "--backend", "/bin/x"),
    ]
    assert scrub({"command": command}).document["command"] == [
        *("portagpu", "bringup", "--full", "--backend", "rocm", "--target", "amd-mi300x"),
        *("--out", "<argument-1>", "<argument-2>", "<argument-3>", "--backend", "<argument-4>"),
    ]


def test_what_other_programs_printed_is_dropped_whole() -> None:
    found = scrub({"extra": {"output": "jdoe was here", "environment": {"A": "b"}}})
    assert found.document == {"extra": {"output": "<output-1>", "environment": "<environment-1>"}}


def test_the_duration_of_the_gate_environment_is_a_number_still() -> None:
    document = {"area_duration_s": {"environment": 0.5}}
    assert scrub(document).document == document


@pytest.mark.parametrize(
    ("release", "kept"),
    [
        ("6.8.0-45-generic", "6.8.0-45"),
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-427.13.1"),
        ("6.6.1-acme-build7", "6.6.1"),
        ("6.1", "6.1"),
    ],
)
def test_a_kernel_keeps_its_numbers(release: str, kept: str) -> None:
    assert scrub({"versions": {"kernel": release}}).document["versions"]["kernel"] == kept


def test_a_dump_is_cut() -> None:
    found = scrub({"reason": "word " * 5000})
    assert len(found.document["reason"]) == MAX_TEXT
    assert scrub(found.document).document == found.document


def test_a_name_that_every_bundle_holds_is_not_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host called gpu: the word is in every result, so removing it would reveal the name."""
    monkeypatch.setattr("platform.node", lambda: "gpu")
    monkeypatch.setattr("socket.gethostname", lambda: "zweiundvierzig.acme.example")
    names = machine_names(
        {"USER": "root", "LOGNAME": "jdoe", "API_TOKEN": "swordfish", "DB_PASS": "herringbone"}
        | {"PWD": "/acme/there"}
    )
    assert ("environment", "herringbone") in names
    assert not [text for _, text in names if text == "/acme/there"]
    assert ("host", "gpu") not in names
    assert ("user", "root") not in names
    assert {
        ("host", "zweiundvierzig.acme.example"),
        ("host", "zweiundvierzig"),
        ("host", "acme.example"),
        ("user", "jdoe"),
        ("environment", "swordfish"),
    } <= set(names)
    assert scrub({"host": "gpu"}, names).document == {"host": "<host-1>"}


def test_the_folders_of_this_machine_are_names_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = {name: tmp_path / f"zweiundvierzig-{name}" for name in ("home", "here", "temporary")}
    for place in places.values():
        place.mkdir()
    monkeypatch.setenv("HOME", str(places["home"]))
    monkeypatch.chdir(places["here"])
    monkeypatch.setattr("tempfile.tempdir", str(places["temporary"]))
    found = {text for kind, text in machine_names({}) if kind == "path"}
    assert found == set(map(str, places.values()))


def test_a_folder_that_is_gone_is_not_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone.rmdir()
    found = {text for kind, text in machine_names({}) if kind == "path"}
    assert str(tmp_path) in found
    assert str(gone) not in found


@pytest.mark.parametrize(
    "key",
    [
        "DB_PASSWORD",
        "api_key",
        "apiKey",
        "AWS_SECRET_ACCESS_KEY",
        "access-key",
        "hf_token",
        "token",
    ],
)
def test_the_value_of_a_key_that_names_a_secret_is_taken_out(key: str) -> None:
    document = {"results": [{"extra": {"env": {key: "hunter2"}, "tokens_per_batch": 7}}]}
    clean = scrub(document)
    assert "hunter2" not in str(clean.document)
    assert clean.document["results"][0]["extra"]["tokens_per_batch"] == 7
    assert list(find_identifying(document))
    assert not list(find_identifying(clean.document))
