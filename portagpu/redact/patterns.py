"""Find what identifies a machine, a person or a secret by its form alone.

The order of patterns matters: an address contains paths, an assignment contains anything. A match
becomes ``<kind-n>``, which no pattern matches, so that scrubbing twice changes nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

PLACEHOLDER: Final = re.compile(r"<[a-z]++-\d++>")
_HELD: Final = PLACEHOLDER.pattern

PUBLIC_HOSTS: Final = frozenset(
    {
        "docs.amd.com",
        "docs.nvidia.com",
        "docs.pytorch.org",
        "github.com",
        "pytorch.org",
        "rocm.docs.amd.com",
        "www.amd.com",
        "www.nvidia.com",
    }
)
"""Hosts whose URLs are kept: they publish facts, expectations and known failures."""

# A pattern here meets texts of strangers: it looks at each character a bounded number of times.
# Runs are taken whole (``++``), and begin where no earlier run could have begun.

_URL: Final = re.compile(
    r"(?<![a-z0-9+.-])(?P<keep>[0-9+.-]*+)(?P<value>[a-z][a-z0-9+.-]*+://[^\s\"'<>]++)",
    re.IGNORECASE,
)
_PUBLIC_URL: Final = re.compile(r"https://([a-z0-9.-]++)(?:/[^?@:]*+)?", re.IGNORECASE)

_SEGMENT: Final = rf"(?:{_HELD}|[^\s/\"'`<>|;,:()\[\]{{}}])++"
_ROOTS: Final = (
    "home|root|Users|mnt|media|tmp|var|data|scratch|work|workspace|projects?|lustre|gpfs|nfs|fsx|"
    "shared|export|srv|net"
)
_PATH: Final = re.compile(
    # absolute, ~/x, or behind a piece; behind a word only from its second slash ("a//x")
    rf"(?:~[\w.-]*+|(?<=>)|(?<![\w)\]>/])|(?<=[\w)\]>]/))(?:/++{_SEGMENT})++/?"
    rf"|(?<=[)\]])(?:/{_SEGMENT}){{2,}}+/?"  # "(n-1)/n" is no path
    rf"|/(?:{_ROOTS})(?:/++{_SEGMENT})++/?"  # "-I/home/x"
)
_SYSTEM_PATH: Final = re.compile(
    r"/(?:dev/(?:shm|kfd|dri|nvidia)|proc/|sys/|opt/rocm|usr/local/cuda)[\w./:*-]*+"
)

_TOKENS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]++-----.*?(?:-----END [A-Z0-9 ]++-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeprs]-|xapp-|AKIA|ASIA|AIza"
    r"|nvapi-|pypi-|npm_|[rsp]k_(?:live|test)_|dop_v1_|dckr_pat_|shp(?:at|ca|pa|ss)_|r8_|gsk_|pplx-|xai-|lin_api_|ntn_"
    r"|sbp_|glsa_|glc_|NRAK-|ATATT3|sq0[a-z]{3}-|tskey-|AGE-SECRET-KEY-)[\w-]{8,}+"
    r"|(?<![A-Za-z0-9])(?:(?:SG|ya29|hv[sbr])\.[\w.-]{16,}+|dapi[0-9a-f]{16,}+)"
    rf"|(?i:(?<=bearer )|(?<=authorization: basic ))(?!{_HELD})\S++",
    re.DOTALL,
)
_JSON_WEB_TOKEN: Final = re.compile(
    r"(?<![\w-])(?P<keep>(?:(?!\beyJ)[\w-])*+)(?P<value>eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*+)"
)
_SENSITIVE: Final = (
    r"[\w-]*?(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|credential)"
)
_GIVEN_SECRET: Final = re.compile(
    rf"(?P<keep>(?<![\w-])(?:(?={_SENSITIVE})[\w-]++[\"']?+\s*+[:=]"
    rf"|(?=(?>[\w-]*?--){_SENSITIVE})[\w-]++ )\s*+[\"']?+)"
    rf"(?!{_HELD})(?P<value>[^\s\"']++)",
    re.IGNORECASE,
)
_MIXED_RUN: Final = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_=-]{32,}+(?![\w+/=-])")
_UUID: Final = re.compile(
    r"(?:\b[A-Z]{2,4}-)?(?<![0-9a-f])[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}(?![0-9a-f])"
    r"|\b(?:GPU|MIG)-[0-9a-f]{8,}+",
    re.IGNORECASE,
)
_UUID_PREFIX: Final = re.compile(r"^[a-z]{2,4}-")
# "serial number: 1652", "serial is PCB043-0178": letters stand before its digits, and not many
_NUMBERED: Final = (
    r"(?:[ _-]*+(?:number|num|no|tag))?\.?[\"']?\s*+(?:(?:[:=#]|is\b)\s*+)?[\"']?)"
    r"(?P<value>(?=[A-Z-]{0,64}\d)[A-Z0-9][A-Z0-9-]{4,}+)"
)
_UNIQUE_ID: Final = re.compile(rf"(?P<keep>(?<![a-z])unique[ _-]?id{_NUMBERED}", re.IGNORECASE)
_SERIAL: Final = re.compile(rf"(?P<keep>(?<![a-z])(?:serial|asset){_NUMBERED}", re.IGNORECASE)
_MAC: Final = re.compile(
    r"(?<![\w:-])[0-9a-f]{2}(?P<joint>[:-])(?:[0-9a-f]{2}(?P=joint)){4,18}[0-9a-f]{2}(?![\w:-])"
    r"|(?<![\w:.])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:])",  # an InfiniBand GUID
    re.IGNORECASE,
)
_IPV4: Final = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IPV6: Final = re.compile(r"(?<![\w:.])[0-9a-f]*+:[0-9a-f:.]*:[0-9a-f.]*(?![\w:])", re.IGNORECASE)
# every word, of which those with a host behind them are addresses
_MAIL: Final = re.compile(rf"(?:{_HELD}|[\w.+-])++(?P<host>@(?:{_HELD}|[\w.-])++)?")
_LABELS: Final = re.compile(r"[\w-]++(?:\.[\w-]++)*+")
_PRIVATE_LABEL: Final = re.compile(
    r"(?:local|localdomain|internal|intra|intranet|lan|corp|cluster|home|svc|private)\b",
    re.IGNORECASE,
)
_HOSTS: Final = (
    re.compile(r"\bip-\d++-\d++-\d++-\d++\b"),
    re.compile(r"(?<![\w.-])[\w.-]++(?=:\d++:\d++ \[\w++\])"),  # NCCL's or RCCL's log
    re.compile(r"(?i:(?<=host ')|(?<=hostname )|(?<=hostname: )|(?<=hostname=))[\w.-]++"),
)
_ASSIGNMENT: Final = re.compile(
    r"(?P<keep>\b[A-Z][A-Z0-9_]{2,}+=(?!=))(?P<value>'[^']*+'|\"[^\"]*+\"|[^\s,;)]++)"
)
_HARMLESS_VALUE: Final = re.compile(rf"[\"']?(?:[\d., -]|{_HELD})*+[\"']?")

Replace = Callable[[str, str], str]
"""(kind, match) -> its replacement."""


def replace_forms(text: str, replace: Replace) -> str:
    """``text`` with all matches of the patterns replaced."""
    pieces: list[str] = []
    end = 0
    for match in _URL.finditer(text):
        url = match["value"]
        pieces.append(_outside_urls(text[end : match.start()] + match["keep"], replace))
        pieces.append(url if _is_public(url) else replace("url", url))
        end = match.end()
    pieces.append(_outside_urls(text[end:], replace))
    return "".join(pieces)


def _outside_urls(text: str, replace: Replace) -> str:
    if not text or text.isalpha():
        return text

    def replace_whole(kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: replace(kind, match[0])

    def replace_value(kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: match["keep"] + replace(kind, match["value"])

    text = _TOKENS.sub(replace_whole("secret"), text)
    text = _JSON_WEB_TOKEN.sub(replace_value("secret"), text)
    text = _GIVEN_SECRET.sub(replace_value("secret"), text)
    text = _UUID.sub(replace_whole("uuid"), text)
    text = _UNIQUE_ID.sub(replace_value("uuid"), text)
    text = _SERIAL.sub(replace_value("serial"), text)
    text = _MAC.sub(replace_whole("address"), text)
    text = _IPV4.sub(lambda match: _address(match, replace), text)
    text = _IPV6.sub(lambda match: _address(match, replace), text)
    if "@" in text:
        text = _MAIL.sub(
            lambda match: replace("address", match[0]) if match["host"] else match[0], text
        )
    if "." in text:
        text = _LABELS.sub(lambda match: _replace_private_host(match, replace), text)
    for pattern in _HOSTS:
        text = pattern.sub(lambda match: _host(match, replace), text)
    text = _PATH.sub(
        lambda match: match[0] if _SYSTEM_PATH.fullmatch(match[0]) else replace("path", match[0]),
        text,
    )
    text = _MIXED_RUN.sub(lambda match: _replace_secret_run(match, replace), text)
    return _ASSIGNMENT.sub(lambda match: _replace_assignment(match, replace), text)


def bare_uuid(text: str) -> str:
    """A UUID in one form: vendors' tools write a prefix that torch leaves out."""
    return _UUID_PREFIX.sub("", text.lower())


def _is_public(url: str) -> bool:
    match = _PUBLIC_URL.fullmatch(url)
    return match is not None and match[1].lower() in PUBLIC_HOSTS


def _address(match: re.Match[str], replace: Replace) -> str:
    try:
        address = ipaddress.ip_address(match[0].rstrip(".:") if "::" not in match[0] else match[0])
    except ValueError:
        return match[0]
    # the loopback and the unspecified address are the same on every machine
    if address.is_loopback or address.is_unspecified:
        return match[0]
    return replace("address", match[0])


def _replace_private_host(match: re.Match[str], replace: Replace) -> str:
    """Replace a host in dotted labels: all up to the last label that is a private domain."""
    found = match[0]
    first = next((at for at, char in enumerate(found) if char != "-"), len(found))
    if "." not in found[first:]:
        return found
    end, at = 0, len(found)
    while not end and (dot := found.rfind(".", first + 1, at)) > 0:
        label = _PRIVATE_LABEL.match(found, dot + 1, at)
        end, at = label.end() if label is not None else 0, dot
    if not end:
        return found
    return found[:first] + replace("host", found[first:end]) + found[end:]


def _host(match: re.Match[str], replace: Replace) -> str:
    return match[0] if match[0].lower() == "localhost" else replace("host", match[0])


def _replace_secret_run(match: re.Match[str], replace: Replace) -> str:
    """Replace long runs that mix cases and digits, as keys do and hexadecimal ids do not."""
    found = match[0]
    mixed = all(any(test(c) for c in found) for test in (str.islower, str.isupper, str.isdigit))
    return replace("secret", found) if mixed else found


def _replace_assignment(match: re.Match[str], replace: Replace) -> str:
    """Replace the value of a variable; numbers, such as device masks and switches, are kept."""
    if _HARMLESS_VALUE.fullmatch(match["value"]):
        return match[0]
    return match["keep"] + replace("environment", match["value"])
