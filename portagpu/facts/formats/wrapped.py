"""Outputs in the JSON or YAML of another program: Ansible, Salt, ``jc``, ``journalctl -o json``.

Ansible writes what a command printed as ``stdout`` and ``stdout_lines``, in the JSON or YAML of a
result ("ok: [node1] => {...}"), or bare below "node1 | CHANGED | rc=0 >>" (lib/ansible/plugins
/callback). Salt writes {"node1": "text"}. Only texts in which an output is known are taken out.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MARKS: Final = (
    "stdout",
    '"MESSAGE"',
    '"content"',
    '"msg"',
    "_lines",
    "=> {",
    " >>\n",
    "\\n",
    '"slot"',
    '"metric"',
)
_AD_HOC: Final = re.compile(
    r"^[\w.@:-]{1,200} \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE)!? \| rc=-?\d{1,5} >>$",
    re.MULTILINE,
)
_ADDED: Final = re.compile(r"non-zero return code\s*$")
"""What Ansible puts after the output of a command that failed."""
_RESULT: Final = re.compile(
    r"^(?:[\w.@:-]{1,200} \| [A-Z!]{2,20}|(?:ok|changed|fatal|failed|skipping): \[[^\]\n]{1,300}\])"
    r"[^{\n]{0,300}=> ?(?=\{|\n|$)",
    re.MULTILINE,
)
_TEXTS: Final = re.compile(r"(?:.*\.)?(?:std(?:out|err)|output|msg)$")
_LINES: Final = re.compile(r"(?:.*\.)?(?:std(?:out|err)_lines|msg|output)$")
_YAML_BLOCK: Final = re.compile(
    r"^( *)(?:- )?[\"']?[\w.]{0,100}(?:stdout|output|msg)[\"']?: [|>][-+\d]{0,2}$"
)
_YAML_LIST: Final = re.compile(r"^( *)(?:- )?[\"']?[\w.]{0,100}(?:stdout_lines|output|msg)[\"']?:$")
_ITEM: Final = re.compile(r" *- (?:'((?:[^']|'')*)'|(\"(?:[^\"\\]|\\.)*\")|(.*))$")
_MICROSECONDS: Final = 16
"""Digits of a time in microseconds since 1970."""
_MAX_DEPTH: Final = 40
_MAX_BROKEN: Final = 100
"""Results with JSON that breaks off, after which no further one is read."""
_MAX_TEXTS: Final = 4096


def unwrapped(text: str, is_known: Callable[[str], bool]) -> list[str]:
    """The outputs in the documents of ``text`` that are known; empty where none is."""
    if not any(mark in text for mark in _MARKS):
        return []
    found: list[str] = []
    for each in (*_journal(text), *_ad_hoc(text), *_documents(text), *_yaml(text)):
        if each not in found and is_known(each):
            found.append(each)
        if len(found) == _MAX_TEXTS:
            break
    return found


def _ad_hoc(text: str) -> Iterator[str]:
    heads = list(_AD_HOC.finditer(text))
    for head, after in zip_longest(heads, heads[1:]):
        body = text[head.end() + 1 : None if after is None else after.start()]
        yield _ADDED.sub("", body).rstrip("\n") + "\n"


def _documents(text: str) -> Iterator[str]:
    """The texts in JSON: of the whole text, and of each of Ansible's results."""
    places = [match.end() for match in _RESULT.finditer(text)]
    if not places and text.lstrip()[:1] in ("{", "["):
        places = [len(text) - len(text.lstrip())]
    decoder = json.JSONDecoder()
    broken = 0
    for place in places:
        try:
            document, _ = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            # each one costs the length of the text, because it says in which line it is
            broken += 1
            if broken == _MAX_BROKEN:
                return
            continue
        yield from _texts(document, 0)
        yield from _lspci(document)
        yield from _samples(document)
        if isinstance(document, dict):
            # Salt: a text for each machine
            several = (v for v in document.values() if isinstance(v, str) and "\n" in v.strip())
            yield from (each.rstrip("\n") + "\n" for each in several)


def _samples(document: Any) -> Iterator[str]:
    """The answer of Prometheus to a query, as the samples that it has: the last of a series."""
    data = document.get("data") if isinstance(document, dict) else None
    results = data.get("result") if isinstance(data, dict) else None
    lines = []
    for each in results if isinstance(results, list) else ():
        if not (isinstance(each, dict) and isinstance(each.get("metric"), dict)):
            continue
        series = each.get("value") or (each.get("values") or [None])[-1]
        labels = {str(k): str(v) for k, v in each["metric"].items()}
        name = labels.pop("__name__", "")
        if name and isinstance(series, list) and len(series) > 1:
            said = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
            lines.append(f"{name}{{{said}}} {series[1]}")
    if lines:
        yield "\n".join([*lines, ""])


def _journal(text: str) -> Iterator[str]:
    """The entries of ``journalctl -o json`` and of jc's syslog parsers as lines of a log."""
    if '"MESSAGE"' not in text and '"content"' not in text:
        return
    entries: list[Any] = []
    for line in text.split("\n") if '"MESSAGE"' in text else ():
        try:
            entries.append(json.loads(line) if line[:1] == "{" else None)
        except (ValueError, RecursionError):
            continue
    try:
        document = json.loads(text) if text.lstrip()[:1] == "[" else None
    except (ValueError, RecursionError):
        document = None
    entries += document if isinstance(document, list) else []
    lines = [line for each in entries if isinstance(each, dict) and (line := _log_line(each))]
    if lines:
        yield "\n".join([*lines, ""])


def _log_line(entry: dict[str, Any]) -> str:
    """An entry of a journal as syslog writes it; "" for what is not one."""
    said = entry.get("MESSAGE", entry.get("content", entry.get("message")))
    who = entry.get("SYSLOG_IDENTIFIER") or entry.get("tag") or entry.get("appname")
    if entry.get("_TRANSPORT") == "kernel":
        who = "kernel"
    if not isinstance(said, str) or not isinstance(who, str):
        return ""
    host = str(entry.get("_HOSTNAME") or entry.get("hostname") or "localhost")
    stamp = str(entry.get("__REALTIME_TIMESTAMP") or entry.get("timestamp") or "")
    if stamp.isdigit() and len(stamp) == _MICROSECONDS:
        taken = datetime.fromtimestamp(int(stamp) / 1e6, UTC)
        stamp = taken.isoformat(timespec="microseconds")
    elif re.fullmatch(r"[A-Z][a-z]{2} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,30}", stamp) is None:
        return f"{who}: {said}"
    first, *rest = said.split("\n")
    return "\n".join([f"{stamp} {host} {who}: {first}", *(f"{who}: {each}" for each in rest)])


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for each in value:
            yield from _texts(each, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, str) and _TEXTS.match(str(key)):
                yield each.rstrip("\n") + "\n"
            elif isinstance(each, list) and _LINES.match(str(key)) and _are_lines(each):
                if key == (bare := key.removesuffix("_lines")) or bare not in value:
                    yield "\n".join([*each, ""])
            else:
                yield from _texts(each, depth + 1)


def _are_lines(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(each, str) for each in value)


def _lspci(document: Any) -> Iterator[str]:
    """The records of ``jc lspci`` as lines of the tool."""
    rows = document if isinstance(document, list) else []
    lines = [
        f"{each['slot']} {each['class']} [{each.get('class_id', '')}]: {each.get('vendor', '')} "
        f"{each.get('device', '')} [{each.get('vendor_id', '')}:{each.get('device_id', '')}]"
        for each in rows
        if isinstance(each, dict) and "slot" in each and "class" in each
    ]
    if lines:
        yield "\n".join([*lines, ""])


def _yaml(text: str) -> Iterator[str]:
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if line[-1:] not in "|>-+:0123456789" or ":" not in line:
            continue
        if (block := _YAML_BLOCK.match(line)) is not None:
            yield _block(lines, at + 1, len(block.group(1)))
        elif (listed := _YAML_LIST.match(line)) is not None:
            yield "\n".join([*_items(lines, at + 1, len(listed.group(1))), ""])


def _from(lines: list[str], at: int) -> Iterator[str]:
    """The lines from one on, without a copy of the rest for each that begins a text."""
    return (lines[number] for number in range(at, len(lines)))


def _block(lines: list[str], at: int, indent: int) -> str:
    found: list[str] = []
    for line in _from(lines, at):
        if line.strip() and len(line) - len(line.lstrip(" ")) <= indent:
            break
        found.append(line)
    margin = min((len(x) - len(x.lstrip(" ")) for x in found if x.strip()), default=0)
    return "\n".join([*(each[margin:] for each in found), ""])


def _items(lines: list[str], at: int, indent: int) -> Iterator[str]:
    for line in _from(lines, at):
        item = _ITEM.match(line)
        if item is None or len(line) - len(line.lstrip(" ")) < indent:
            return
        if item.group(2) is not None:
            try:
                yield str(json.loads(item.group(2)))
            except ValueError:
                yield item.group(2)[1:-1]
        else:
            yield item.group(3) if item.group(1) is None else item.group(1).replace("''", "'")
