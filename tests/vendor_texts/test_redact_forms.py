"""Forms of secrets and identities as tools write them, in a text, in JSON, and in a recording."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape, unescape

import pytest

from portagpu.base.redact.names import identifying_kind
from portagpu.base.redact.scrub import find_identifying, scrub
from portagpu.checks.recordings import record as record_module
from portagpu.checks.recordings.record import record
from portagpu.machine.inventory.sources import CommandOutput
from tests.support.gpu_trees import machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86
from tests.support.looped import looped
from tests.support.redact_forms import EVERY, KEPT

if TYPE_CHECKING:
    from pathlib import Path

PLACEHOLDER: Final = re.compile(r"<[a-z]+-\d+>")


def ways_to_write(text: str) -> dict[str, str]:
    """The text by itself, in a sentence, and within JSON of one and two levels."""
    document = json.dumps({"said": text})
    return {
        "alone": text,
        "in a sentence": f"it said {text} and stopped",
        "in JSON": document,
        "in JSON within a line": f"log: {document} end",
        "in JSON in JSON": json.dumps([document]),
        "in JSON in JSON in a sentence": f"it said {json.dumps(document)}, and stopped",
    }


@looped("text,secret", EVERY)
def test_no_form_is_left_however_it_is_written(text: str, secret: str) -> None:
    for way, written in ways_to_write(text).items():
        clean = scrub({"reason": written}).document["reason"]
        assert secret not in clean, way
        assert PLACEHOLDER.search(clean), way
        assert scrub({"reason": clean}).document["reason"] == clean, f"{way}: changes again"
        assert not list(find_identifying({"reason": clean})), way
        if way in ("in JSON", "in JSON in JSON"):
            json.loads(clean)


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_it_is_kept(text: str) -> None:
    for way, written in ways_to_write(text).items():
        assert scrub({"reason": written}).document["reason"] == written, way


def test_json_keeps_its_values_and_their_types() -> None:
    inner = {
        "uniqueId": 12345678901,
        "max_tokens": 4096,
        "ok": True,
        "none": None,
        "of": [{"apiToken": "hunter2"}, {"credentials": {"user": "jdoe", "x": ["hunter2"]}}],
        "note": "line\n\t@x and \\d",
    }
    for text in (json.dumps(inner), json.dumps(inner, indent=1), f"{json.dumps(inner)}\n"):
        clean = json.loads(scrub({"reason": text}).document["reason"])
        assert clean == {
            "uniqueId": "<uuid-1>",
            "max_tokens": 4096,
            "ok": True,
            "none": None,
            "of": [
                {"apiToken": "<secret-1>"},
                {"credentials": {"user": "<user-1>", "x": ["<secret-1>"]}},
            ],
            "note": "line\n\t@x and \\d",
        }


def test_json_with_a_key_twice_hides_nothing() -> None:
    text = '{"password": "hunter2", "password": null}'
    assert "hunter2" not in scrub({"reason": text}).document["reason"]


def test_json_without_an_end_and_nested_json_are_cleaned() -> None:
    for text in (
        '{"password": "hunter2", "a": [',
        "[" * 5000 + '{"password": "hunter2"}',
        '[{"a": ' * 3000 + '{"password": "hunter2"}',
    ):
        clean = scrub({"text": text[-3000:]}).document["text"]
        assert "hunter2" not in clean
        assert "hunter2" not in scrub({"text": text}).document["text"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("mac", "address"), "address"),
        (("node", "guid"), "address"),
        (("serial", "number"), "serial"),
        (("unique", "id"), "uuid"),
        (("host", "name"), "host"),
        (("user", "name"), "user"),
        (("api", "token"), "secret"),
        (("ssh", "private", "key"), "secret"),
        (("db", "passwd"), "secret"),
        (("session", "id"), "secret"),
        (("basic", "auth"), "secret"),
        (("aws", "secret", "access", "key", "id"), "secret"),
        (("primary", "key"), None),
        (("tokenizer", "path"), None),
        (("author", "name"), None),
        (("by", "pass"), "secret"),
        (("bypass",), None),
        (("compass",), None),
        (("keyboard",), None),
    ],
)
def test_a_key_is_the_same_however_it_is_spelled(words: tuple[str, ...], kind: str | None) -> None:
    first, *others = words
    for key in (
        "_".join(words),
        "-".join(words),
        " ".join(words),
        ".".join(words),
        "_".join(words).upper(),
        " ".join(words).title(),
        first + "".join(each.title() for each in others),
        "".join(each.title() for each in words),
    ):
        assert identifying_kind(key) == kind, key


def test_numbers_are_taken_out_under_what_identifies_and_kept_under_what_counts() -> None:
    document = {
        "uniqueId": 12345678901,
        "serialNumber": 1652921012345,
        "password": 47114711,
        "apiKey": 47114711,
        "tokens": 4096,
        "tokens_per_batch": 7,
        "ms_per_token": 3.5,
        "pass": 3,
        "users": 2,
        "secret": True,
    }
    clean = scrub(document).document
    kept = {key for key, value in document.items() if clean[key] == value}
    assert kept == {"tokens", "tokens_per_batch", "ms_per_token", "pass", "users", "secret"}


def test_one_address_has_one_name_in_all_its_forms() -> None:
    text = "node_guid 0x0002c90300a1b2c3, guid: 0002c90300a1b2c3, 0002:c903:00a1:b2c3"
    clean = scrub({"reason": text, "extra": {"node_guid": "0x0002c90300a1b2c3"}}).document
    assert set(PLACEHOLDER.findall(json.dumps(clean))) == {"<address-1>"}
    macs = "00:1b:44:11:3a:b7, 00-1B-44-11-3A-B7, 001b.4411.3ab7 and mac 001b44113ab7"
    clean = scrub({"reason": f"{macs}, 00:1b:44:11:3a:b8"}).document["reason"]
    assert PLACEHOLDER.findall(clean) == ["<address-1>"] * 4 + ["<address-2>"]


ATTACHED: Final = """GPU 0: NVIDIA H200 (UUID: GPU-11111111-2222-3333-4444-000000000001)
\t Link 0: 26.562 GB/s
"""


def test_no_form_is_left_in_a_recording_of_the_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form as a line of a tool's output, in an element of its XML, and in its JSON."""
    # an output whose first lines are of JSON or XML is read as that
    last = sorted((text for text, _ in EVERY), key=lambda text: text.startswith(("{", "<")))
    lines = [f"{ATTACHED}{text}\n" for text in last]
    notes = "".join(f"<note>{escape(text)}</note>\n{escape(text)}\n" for text, _ in EVERY)
    listed = {
        "gpu": 0,
        "notes": [text for text, _ in EVERY],
        "documents": [json.dumps({"said": text}) for text, _ in EVERY],
    }
    printed = [
        CommandOutput(("nvidia-smi", "nvlink", "-s"), "".join(lines)),
        CommandOutput(("amd-smi", "static", "--json"), json.dumps([listed])),
        CommandOutput(
            ("nvidia-smi", "-q", "-x"),
            f"""<?xml version="1.0" ?>\n<nvidia_smi_log><driver_version>535.104.05</driver_version>
<attached_gpus>1</attached_gpus><gpu id="00000000:07:00.0">{notes}</gpu></nvidia_smi_log>\n""",
        ),
    ]
    gpu_files, links = machine(nvidia_gpu(1))
    root = build(tmp_path / "machine", two_socket_x86() | gpu_files, links)
    monkeypatch.setattr(record_module, "run_commands", lambda _: iter(printed))
    saved = record(tmp_path / "saved", root, names=())
    names = ("nvidia-smi-nvlink-s.txt", "amd-smi-static-json.txt", "nvidia-smi-q-x.txt")
    outputs = {
        path.name: path.read_text("utf-8")
        for path in saved.folder.rglob("*.txt")
        if path.name in names
    }
    assert outputs.keys() == set(names)
    left = [
        (name, text, secret)
        for name, whole in outputs.items()
        for text, secret in EVERY
        if secret in PLACEHOLDER.sub("", unescape(whole))
    ]
    assert not left
    assert outputs[names[0]].count("26.562 GB/s") == len(lines), "what is of GPUs is kept"
    assert "535.104.05" in outputs[names[2]]
    documents = json.loads(outputs[names[1]])[0]["documents"]
    assert all(json.loads(each) for each in documents)
