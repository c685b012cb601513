"""Outputs in the JSON and YAML of what ran the tools.

Forms: lib/ansible/plugins/callback (default, minimal, json, yaml), Salt's JSON, jc's lspci parser.
"""

from __future__ import annotations

import json

import pytest

from portagpu.facts.formats.reader import read_text

LOST = (
    "[    0.000000] Linux version 5.14.0\n"
    "[ 1234.500000] NVRM: Xid (PCI:0000:4c:00): 79, pid='<unknown>', name=<unknown>, GPU has "
    "fallen off the bus.\n"
)
LIST = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555556)\n"
)


def lines(text: str) -> list[str]:
    return text.splitlines()


def yaml_items(text: str, indent: str) -> str:
    return "".join(f"{indent}- '{each.replace(chr(39), chr(39) * 2)}'\n" for each in lines(text))


WRAPPERS = {
    "ad hoc": lambda text: f"node7 | CHANGED | rc=0 >>\n{text}\n",
    "ad hoc, json": lambda text: "node7 | SUCCESS => " + json.dumps({"stdout": text}, indent=4),
    "result": lambda text: json.dumps({"rc": 0, "stdout": text, "stdout_lines": lines(text)}),
    "lines alone": lambda text: json.dumps({"rc": 0, "stdout_lines": lines(text)}, indent=2),
    "play": lambda text: (
        "TASK [debug] ****\nok: [node7] => "
        + json.dumps({"out.stdout_lines": lines(text)}, indent=4)
        + "\n\nPLAY RECAP ****\nnode7 : ok=2\n"
    ),
    "plays": lambda text: json.dumps(
        {"plays": [{"tasks": [{"hosts": {"node7": {"msg": lines(text)}}}]}]}
    ),
    "salt": lambda text: json.dumps({"node7": text}, indent=4),
    "yaml lines": lambda text: "ok: [node7] =>\n  out.stdout_lines:\n" + yaml_items(text, "  "),
    "yaml block": lambda text: (
        "node7:\n  rc: 0\n  stdout: |-\n"
        + "".join(f"    {each}\n" for each in lines(text))
        + "  stderr: ''\n"
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_log_in_a_wrapper_is_read_as_it_is_without(wrapper: str) -> None:
    found = read_text(WRAPPERS[wrapper](LOST))
    assert [event.code for each in found for event in each.events] == ["Xid 79"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_list_in_a_wrapper_is_read_as_it_is_without(wrapper: str) -> None:
    found = read_text(WRAPPERS[wrapper](LIST))
    assert [one.index for each in found for one in each.readings] == [0, 1]


def test_every_machine_of_a_run_has_its_text() -> None:
    text = (
        "node7 | CHANGED | rc=0 >>\n" + LIST + "node8 | FAILED | rc=9 >>\n"
        "No devices were foundnon-zero return code\n"
    )
    found = read_text(text)
    assert [event.code for each in found for event in each.events] == ["no devices"]
    assert sum(len(each.readings) for each in found) == 2


def test_a_failed_command_in_a_result_is_the_tools_answer() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    text = f"fatal: [node7]: FAILED! => {json.dumps({'rc': 9, 'msg': 'failed', 'stdout': said})}\n"
    found = read_text(text)
    assert [event.code for each in found for event in each.events] == ["no driver"]


def test_records_of_lspci_are_devices() -> None:
    record = {
        "slot": "4c:00.0", "class": "3D controller", "class_id": "0302", "device_id": "2330",
        "vendor": "NVIDIA Corporation", "vendor_id": "10de", "device": "GH100 [H100 SXM5 80GB]",
    }  # fmt: skip
    found = read_text(json.dumps([record], indent=2))
    assert [(one.pci, one.device_id) for each in found for one in each.readings] == [
        ("0000:4c:00.0", 0x2330)
    ]


def test_a_journal_in_json_is_a_log_without_lines_that_nobody_knows() -> None:
    entries = [
        {"_TRANSPORT": "kernel", "MESSAGE": "Linux version 6.8.0", "_HOSTNAME": "node7"},
        {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "sshd", "MESSAGE": "Accepted publickey"},
        {
            "_TRANSPORT": "kernel",
            "SYSLOG_IDENTIFIER": "kernel",
            "MESSAGE": "NVRM: Xid (PCI:0000:4c:00): 79, pid=1, GPU has fallen off the bus.",
            "_HOSTNAME": "node7",
        },
    ]
    stamped = [each | {"__REALTIME_TIMESTAMP": "1770000000000000"} for each in entries]
    found = read_text("".join(json.dumps(each) + "\n" for each in stamped))
    events = [event for each in found for event in each.events]
    assert [(event.code, (event.time or "")[:10]) for event in events] == [("Xid 79", "2026-02-02")]
    assert [problem for each in found for problem in each.problems] == []


def test_records_of_a_system_log_are_a_log() -> None:
    said = "NVRM: Xid (PCI:0000:4c:00): 79, pid=1, GPU has fallen off the bus."
    record = {"timestamp": "Jan  2 03:04:05", "hostname": "node7", "tag": "kernel", "content": said}
    found = read_text(json.dumps([record], indent=2))
    assert [event.code for each in found for event in each.events] == ["Xid 79"]
    assert [problem for each in found for problem in each.problems] == []
