"""Find what identifies a machine, a person or a secret by its form alone.

The order of patterns matters: an address contains paths, an assignment contains anything. A match
becomes ``<kind-n>``, which no pattern matches, so that scrubbing twice changes nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from portagpu.base.redact.names import ROUGHLY, identifying_kind, is_word_of_prose, names_something

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

# A pattern here meets untrusted texts: it looks at each character a bounded number of times.
# Runs are taken whole (``++``), and begin where no earlier run could have begun.

_URL: Final = re.compile(
    r"(?<![a-z0-9+.-])(?P<keep>[0-9+.-]*+)(?P<value>[a-z][a-z0-9+.-]*+://[^\s\"'<>]++)",
    re.IGNORECASE,
)
_PUBLIC_URL: Final = re.compile(r"https://([a-z0-9.-]++)(?:/[^?@:]*+)?", re.IGNORECASE)

_SEGMENT: Final = rf"(?:{_HELD}|\\{{1,2}}[ ]|[^\s/\"'`<>|;,:()\[\]{{}}])++"
_ROOTS: Final = (
    "home|root|Users|mnt|media|tmp|var|data|scratch|work|workspace|projects?|lustre|gpfs|nfs|fsx|"
    "shared|export|srv|net"
)
_PATH: Final = re.compile(
    # absolute, ~/x, or after a piece; after a word only from its second slash ("a//x")
    rf"(?:~[\w.-]*+|(?<=>)|(?<![\w)\]>/])|(?<=[\w)\]>]/))(?:/++{_SEGMENT})++/?"
    rf"|(?<=[)\]])(?:/{_SEGMENT}){{2,}}+/?"  # "(n-1)/n" is not a path
    rf"|/(?:{_ROOTS})(?:/++{_SEGMENT})++/?"  # "-I/home/x"
    r"|(?i:%2F(?:home|Users|root|scratch|mnt|data)%2F)[\w.%+-]++",
)
_WORDS: Final = r"[^/\"'`\n\\ ]++(?: [^/\"'`\n\\ ]++){0,2}"
_QUOTED_PATH: Final = re.compile(  # which may hold blanks, and is not a sentence
    rf"(?<=[\"'`])(?:~?/(?:{_ROOTS})(?=/)|~?/[^\s/\"'`<>|;,\\]++(?=/)|~)(?:/++{_WORDS})++"
    r"(?=\\*+[\"'`])"
)
_HOME_WITH_BLANK: Final = re.compile(  # "/home/b smith/x"
    rf"(?<![\w.])/(?:home|Users)/[\w.-]++ [A-Za-z]{{2,32}}+(?:/++{_SEGMENT})++/?"
)
_SHARE: Final = r"[A-Za-z0-9][\w.$ -]{1,80}+"
_FOLDER: Final = r"[^\\/:*?\"'<>|,;()\[\]{}\r\n]{1,80}+"
_LAST: Final = r"[^\\/:*?\"'<>|,;()\[\]{}\s]{0,255}+"
_WINDOWS_PATH: Final = re.compile(
    # its separator is doubled by every text in quotes around it
    rf"(?<![A-Za-z0-9])[A-Z]:(?P<joint>\\{{1,16}}+|/)(?=[\w.$~])(?:{_FOLDER}(?P=joint))*+{_LAST}"
    rf"|(?<![A-Za-z0-9])[a-z]:(?P<other>\\{{1,16}}+|/)(?i:Users)(?P=other)"
    rf"(?:{_FOLDER}(?P=other))*+{_LAST}"
    rf"|(?<![\w\\])(?P<half>\\{{1,8}})(?P=half){_SHARE}(?P=half)(?=[A-Za-z0-9])(?:{_FOLDER}(?P=half))*+{_LAST}"
)
_SYSTEM_PATH: Final = re.compile(
    r"/(?:dev/(?:shm|kfd|dri|nvidia)|proc/|sys/|opt/rocm|usr/local/cuda)[\w./:*-]*+"
)

# prefixes that those who issue tokens document, or that scanners for secrets list
_TOKENS: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]++-----.*?(?:-----END [A-Z0-9 ]++-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|gl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)-|GR1348941"
    r"|hf_|api_org_|sk-|xox[abeoprs]-|xoxe\.xox[bp]-|xapp-|A(?:KIA|SIA|ROA|IDA|BIA|CCA)|AIza|GOCSPX-|LTAI|AKID"
    r"|nvapi-|pypi-|npm_|[rsp]k_(?:live|test)_|whsec_|do[or]_v1_|dop_v1_|dckr_(?:pat|oat)_"
    r"|shp(?:at|ca|pa|ss)_|r8_|gsk_|pplx-|xai-|csk-|lin_api_|ntn_|tgp_v1_|wandb_v1_|lsv2_[ps][kt]_|pcsk_"
    r"|sbp_|glsa_|glc_|NRAK-|AT(?:ATT|CTT|BB)|sntry[su]_|figd_|PMAK-|rubygems_|pul-|sq0[a-z]{3}-|tskey-"
    r"|AGE-SECRET-KEY-)[\w-]{8,}+"
    r"|(?<![A-Za-z0-9])(?:(?:SG|ya29|hv[sbr])\.[\w.-]{16,}+|dapi[0-9a-f]{16,}+|[\w-]{8,32}+\.atlasv1\.[\w-]++)"
    rf"|(?i:(?<=bearer )|(?<=authorization: basic ))(?!{_HELD})[^\s\"'\\]++"
    r"|(?i:(?<=basic ))[A-Za-z0-9+/]{6,}+={1,2}+",
    re.DOTALL,
)
_JSON_WEB_TOKEN: Final = re.compile(
    r"(?<![\w-])(?P<keep>(?:(?!\beyJ)[\w-])*+)(?P<value>eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*+)"
)
_WANDB_KEY: Final = re.compile(
    r"(?P<keep>(?<![\w-])wandb login(?: ++--[\w=./:-]++){0,4}+ ++|(?<![\w-])api\.wandb\.ai\S*+ )"
    r"(?P<value>(?:local-)?[0-9a-f]{40}(?![0-9a-f]))"
)
_NETRC: Final = re.compile(
    rf"(?P<keep>(?<![\w-])login[ \t\n]++\S++[ \t\n]++password[ \t\n]++)(?!{_HELD})(?P<value>\S++)"
)
_SHORT_OPTION: Final = re.compile(  # "-p" is a port or a folder for others
    r"(?P<keep>(?<![\w-])(?:sshpass|(?:docker|podman|nerdctl|helm registry|oras|crane) login"
    r"|mysql|mysqldump|mariadb|ipmitool|redis-cli|curl|wget)(?= )[^\n|;&]{0,200}?"
    r" -(?:[pPa] ?|u ?[^\s:]{1,80}:))"
    rf"(?!{_HELD})(?P<value>[^\s\"'-][^\s\"']*+)"
)
_OF_COMMANDS: Final = (("wandb", _WANDB_KEY), ("login", _NETRC), (" -", _SHORT_OPTION))
"""(what is part of each match, pattern)."""
_QUOTE: Final = r"(?:\\*+[\"'])?+"
_LABEL: Final = re.compile(
    # a key and what joins it to its value; that is looked at only if the key identifies
    r"(?<![\w-])(?=[\w-]++[\\\"' \t]*+(?:[:=>]|%3D)|-[\w-]++ )"
    rf"(?P<key>(?=[\w-]*?(?:{ROUGHLY}))[\w-]++)"
    r"(?:(?P<quote>\\*+[\"'])?+[ \t]*+(?P<joint>=>|:=|%3D|=(?!=)|:(?![:/]))\s*+"
    r"|(?P<option> )|(?P<tag>>))",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(
    r"\"(?P<double>(?:[^\"\\\n]|\\.)*+)"
    r"|'(?P<single>(?:[^'\\\n]|\\.)*+)"
    r"|(?P<open>\\{1,32}+[\"'])(?P<escaped>(?:(?!(?<!\\)(?P=open))[^\n])*+)"
    r"|(?P<bare>(?:[^\s\"'\\&]|\\(?![\"'])|&(?![\w.-]{1,40}=))++)",
)
_SCHEME: Final = re.compile(r"(?:basic|bearer|token|digest|negotiate|apikey)[ \t]++", re.IGNORECASE)
_BLOCK: Final = re.compile(r"[|>][+-]?[ \t]*+\n[ \t]++")
"""The beginning of a text of YAML's over several lines."""
_TO_ITS_END: Final = re.compile(r"[^\n\"'\\]*+")
_HOST_VALUE: Final = re.compile(r"(?=[\d.-]{0,64}[A-Za-z])[A-Za-z0-9][\w.-]*+")
_USER_VALUE: Final = re.compile(r"[A-Za-z_][\w.\\@+-]*+(?::[^\s\"']++)?+")
_HARDWARE_ADDRESS: Final = re.compile(r"(?:0x)?(?=[0-9a-f]{0,15}\d)[0-9a-f]{10,16}", re.IGNORECASE)
_MIXED_RUN: Final = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_=-]{32,}+(?![\w+/=-])")
_UUID: Final = re.compile(
    r"(?:\b[A-Z]{2,4}-)?(?<![0-9a-f])[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}(?![0-9a-f])"
    r"|\b(?:GPU|MIG)-[0-9a-f]{8,}+",
    re.IGNORECASE,
)
_UUID_PREFIX: Final = re.compile(r"^[a-z]{2,4}-")
# "serial number: 1652", "serial is PCB043-0178": letters stand before its digits, and not many
_NUMBERED: Final = (
    rf"(?:[ _-]*+(?:number|num|no|nr|tag|id))?\.?{_QUOTE}\s*+(?:(?:[:=#]|is\b)\s*+)?{_QUOTE})"
    r"(?P<value>(?=[A-Z-]{0,64}\d)[A-Z0-9][A-Z0-9-]{4,}+)"
)
_UNIQUE_ID: Final = re.compile(rf"(?P<keep>(?<![a-z])unique[ _-]?id{_NUMBERED}", re.IGNORECASE)
_SERIAL: Final = re.compile(
    r"(?P<keep>(?:(?<![a-z])(?:serial|asset|(?:service|chassis)[ _-]?(?=tag|serial|id))"
    rf"|(?-i:(?<=[a-z])Serial)){_NUMBERED}"
    rf"|(?P<keep_short>(?<![a-z0-9/])(?:sn{_QUOTE}\s*+[:=#]|s/n{_QUOTE}\s*+[:=#]?)\s*+{_QUOTE})"
    r"(?P<short>(?=[A-Z-]{0,64}\d)[A-Z0-9][A-Z0-9-]{4,}+)",
    re.IGNORECASE,
)
_MAC: Final = re.compile(
    r"(?<![A-Za-z0-9:-])[0-9a-f]{2}(?P<joint>[:-])(?:[0-9a-f]{2}(?P=joint)){4,18}[0-9a-f]{2}(?![A-Za-z0-9]|[:-][0-9a-f]{2})"
    r"|(?<![\w.:-])(?=0|[0-9.]{0,13}[a-f])[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}(?![\w:-]|\.\w)"
    r"|(?<![\w:.])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?!\w|:[0-9a-f])",  # an InfiniBand GUID
    re.IGNORECASE,
)
_BARE_ADDRESS: Final = re.compile(
    # a number of 64 bits is a GUID, and one of 48 a MAC address, where a word says so
    r"(?P<keep>(?:guids?+|(?<![a-z])(?:wwn|wwid|eui64|hwaddr|ether|permaddr"
    r"|mac(?:[ _-]?addr(?:ess)?)?))"
    rf"(?:\[\s*+\d++\])?+(?=[\s:=\"'\\(]){_QUOTE}\s*+(?:[:=]|is\b)?+\s*+{_QUOTE}\(?)"
    r"(?P<value>(?:0x)?[0-9a-f]{10,16})(?![0-9a-z])",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile(r"[:.-]")
_DEVICE_ID: Final = re.compile(
    rf"(?P<keep>(?<![a-z])pdi{_QUOTE}\s*+[:=]\s*+{_QUOTE})(?P<value>(?:0x)?[0-9a-f]{{10,16}})(?![0-9a-z])",
    re.IGNORECASE,
)
"""The per-device identifier of some drivers."""
_FABRIC_FORMS: Final = (
    re.compile(r"(?<![\w-])(?P<keep>[HSR]-)(?P<value>[0-9a-f]{16})(?![\w-])"),  # of ibnetdiscover
    re.compile(r"(?<=[>\]])(?P<keep>\()(?P<value>[0-9a-f]{11,16})(?=\))"),
    re.compile(r"(?P<keep>\bGID -?\d++ \()(?P<value>[0-9A-Fa-f]{1,16}/[0-9A-Fa-f]{1,16})(?=\))"),
)
_LONG_HEX: Final = re.compile(r"(?<!\w)0x(?!0000|ffff)[0-9a-f]{16}(?!\w)", re.IGNORECASE)
_FABRIC: Final = re.compile(
    r"guid|\bgid\b|\bmlx[45]|infiniband|\bNET/IB\b|\bib\w*?\d|\b(?:HCA|CA|Switch)\b\s*+:|\brdma|\bhfi\d|\bbnxt_re|\birdma"
    r"|\broce|\bsubnet\b|\bsm_key\b",
    re.IGNORECASE,
)
_REGISTER: Final = re.compile(
    r"(?:mask|addr(?:ess)?|pointer|ptr|iova|va|dma|offset|size|flags|counter|context|hash)\W{0,4}\Z",
    re.IGNORECASE,
)
_BEFORE: Final = 80
"""Characters before a number of 64 bits, and half as many after it, that say of what it is."""
_VERSION_BEFORE: Final = re.compile(
    r"(?:\b(?:v|ver|versions?|driver|firmware|fw|v?bios|release|revision|rev)"
    r"[\"']?[ \t]*+[:=]?[ \t]*+[\"']?|==)\Z",
    re.IGNORECASE,
)
_IPV4: Final = re.compile(
    r"(?<![A-Za-z0-9.])\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9]|\.\d|-(?!\d{1,3}\.\d{1,3}\.))"
    r"|(?<![\d.])(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?![\d]|\.\d)"
)
_IPV6: Final = re.compile(
    r"(?<![A-Za-z0-9:.])[0-9a-f]*+:[0-9a-f:.]*:[0-9a-f.]*(?![\w:])", re.IGNORECASE
)
# every word, of which those with a host after them are addresses
_MAIL: Final = re.compile(rf"(?:{_HELD}|[\w.+-])++(?P<host>(?:@|%40)(?:{_HELD}|[\w.-])++)?")
_LABELS: Final = re.compile(r"[\w-]++(?:\.[\w-]++)*+")
_PRIVATE_LABEL: Final = re.compile(
    r"(?:local|localdomain|internal|intra|intranet|lan|corp|cluster|home|svc|private)\b",
    re.IGNORECASE,
)
_HOSTS: Final = (
    re.compile(r"\bip-\d++-\d++-\d++-\d++\b"),
    re.compile(r"(?<![\w.-])[\w.-]++(?=:\d++:\d++ \[\w++\])"),  # NCCL's or RCCL's log
    re.compile(r"(?i:(?<=host ')|(?<=hostname ))[\w.-]++"),
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
    for word, pattern in _OF_COMMANDS:
        if word in text:
            text = pattern.sub(replace_value("secret"), text)
    text = _replace_labelled(text, replace)
    text = _UUID.sub(replace_whole("uuid"), text)
    text = _UNIQUE_ID.sub(replace_value("uuid"), text)
    text = _DEVICE_ID.sub(replace_value("uuid"), text)
    text = _SERIAL.sub(lambda match: _serial(match, replace), text)
    text = _MAC.sub(replace_whole("address"), text)
    text = _BARE_ADDRESS.sub(lambda match: _bare_address(match, replace), text)
    for pattern in _FABRIC_FORMS:
        text = pattern.sub(replace_value("address"), text)
    text = _LONG_HEX.sub(lambda match: _guid(match, replace), text)
    text = _IPV4.sub(lambda match: _address(match, replace), text)
    text = _IPV6.sub(lambda match: _address(match, replace), text)
    if "@" in text or "%40" in text:
        text = _MAIL.sub(
            lambda match: replace("address", match[0]) if match["host"] else match[0], text
        )
    if "." in text:
        text = _LABELS.sub(lambda match: _replace_private_host(match, replace), text)
    for pattern in _HOSTS:
        text = pattern.sub(lambda match: _host(match, replace), text)
    if ":/" in text or "\\" in text:
        text = _WINDOWS_PATH.sub(replace_whole("path"), text)
    text = _QUOTED_PATH.sub(
        lambda match: match[0] if _SYSTEM_PATH.match(match[0]) else replace("path", match[0]), text
    )
    text = _HOME_WITH_BLANK.sub(replace_whole("path"), text)
    text = _PATH.sub(
        lambda match: match[0] if _SYSTEM_PATH.fullmatch(match[0]) else replace("path", match[0]),
        text,
    )
    text = _MIXED_RUN.sub(lambda match: _replace_secret_run(match, replace), text)
    return _ASSIGNMENT.sub(lambda match: _replace_assignment(match, replace), text)


def bare_uuid(text: str) -> str:
    """A UUID in one form: vendors' tools write a prefix that torch leaves out."""
    return _UUID_PREFIX.sub("", text.lower())


def bare_address(text: str) -> str:
    """A GUID or MAC address in one form; any other text as it is."""
    digits = _SEPARATORS.sub("", text.lower().removeprefix("0x"))
    return digits if len(digits) in (12, 16) and "::" not in text else text


def _is_public(url: str) -> bool:
    match = _PUBLIC_URL.fullmatch(url)
    return match is not None and match[1].lower() in PUBLIC_HOSTS


def _replace_labelled(text: str, replace: Replace) -> str:
    """``text`` without the values that the key before them says to identify or to be secret."""
    pieces: list[str] = []
    end = at = 0
    while (label := _LABEL.search(text, at)) is not None:
        at = label.end()
        kind = identifying_kind(label["key"])
        if kind is None or (found := _labelled_value(text, label, kind)) is None:
            continue
        begin, after = found
        quote = label["quote"] or ""
        bare = text[begin - 1] not in "\"'" and quote
        # a number of JSON becomes a text of JSON
        quote = quote if bare and text[begin:after].replace(".", "").isdecimal() else ""
        pieces += [text[end:begin], quote, replace(kind, text[begin:after]), quote]
        end = at = after
    return "".join([*pieces, text[end:]]) if pieces else text


def _labelled_value(text: str, label: re.Match[str], kind: str) -> tuple[int, int] | None:
    """Where the value of the label begins and ends; None for what does not identify."""
    key, joint = label["key"], label["joint"]
    if label["option"] and not key.startswith("-"):
        return None
    before = label.start() - 1
    if label["tag"] and (text[before : before + 1] != "<" or PLACEHOLDER.match(text, before)):
        return None
    if joint and not label["quote"] and is_word_of_prose(key) and label[0] != f"{key}=":
        return None
    value = _VALUE.match(text, label.end())
    if value is None or value.lastgroup is None:
        return None
    begin, after = value.span(value.lastgroup)
    if value.lastgroup == "bare":
        columns = kind != "secret" and label[0][-2:].isspace()
        if columns or (label["quote"] and text[begin] in "{["):
            return None
        if label["tag"] and (closed := text.find("<", begin, after)) >= 0:
            after = closed
        if "cookie" in key.lower() and joint == ":":
            after = _end_of(_TO_ITS_END, text, begin)
        elif (scheme := _SCHEME.match(text, begin)) is not None and kind == "secret":
            begin, after = scheme.end(), _end_of(_VALUE, text, scheme.end())
        if (block := _BLOCK.match(text, begin)) is not None:
            begin, after = block.end(), _end_of(_TO_ITS_END, text, block.end())
        found = text[begin:after].rstrip(",;)]}.")
        if "\n" in label[0] and found.endswith(":"):  # the next line has a key of its own
            return None
    elif (scheme := _SCHEME.match(text, begin, after)) is not None:
        begin = scheme.end()
        found = text[begin:after]
    else:
        found = text[begin:after]
    if PLACEHOLDER.match(found) or not names_something(kind, key, found):
        return None
    if label["option"] and found.startswith("--"):
        return None
    if (form := _FORMS_OF_VALUES.get(kind)) is not None:
        match = form.match(found)
        if match is None or (kind == "host" and match[0].lower() == "localhost"):
            return None
        found = match[0]
    elif kind != "secret":
        return None  # their forms are found with the label
    return begin, begin + len(found)


_FORMS_OF_VALUES: Final = {
    "host": _HOST_VALUE,
    "user": _USER_VALUE,
    "address": _HARDWARE_ADDRESS,
}
"""What of a value after a label in a sentence is a name."""


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _serial(match: re.Match[str], replace: Replace) -> str:
    if match["short"] is not None:
        return match["keep_short"] + replace("serial", match["short"])
    return match["keep"] + replace("serial", match["value"])


def _bare_address(match: re.Match[str], replace: Replace) -> str:
    digits = match["value"].lower().removeprefix("0x")
    # nothing, or a mask
    return match[0] if len(set(digits)) < 3 else match["keep"] + replace("address", match["value"])


def _guid(match: re.Match[str], replace: Replace) -> str:
    """Replace a number of 64 bits next to words of a fabric; elsewhere it is a register's."""
    before = match.string[max(0, match.start() - _BEFORE) : match.start()].rpartition("\n")[2]
    after = match.string[match.end() : match.end() + _BEFORE // 2].partition("\n")[0]
    if _REGISTER.search(before) or not (_FABRIC.search(before) or _FABRIC.search(after)):
        return match[0]
    return replace("address", match[0])


def _address(match: re.Match[str], replace: Replace) -> str:
    for found in dict.fromkeys((match[0], match[0].rstrip("."), match[0].rstrip(".:"))):
        try:
            address = ipaddress.ip_address(found)
        except ValueError:
            continue
        # the loopback and the unspecified address are the same on every machine
        if address.is_loopback or address.is_unspecified:
            return match[0]
        before = match.string[max(0, match.start() - 16) : match.start()]
        if address.version == 4 and _VERSION_BEFORE.search(before):
            return match[0]
        return replace("address", found) + match[0][len(found) :]
    return match[0]


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
    """Replace long runs that mix cases and digits, as keys do and hexadecimal ids do not.

    A UUID that is left stands for another one, also as the value of a name.
    """
    found = match[0]
    if _UUID.fullmatch(found.rpartition("=")[2]):
        return found
    mixed = all(any(test(c) for c in found) for test in (str.islower, str.isupper, str.isdigit))
    return replace("secret", found) if mixed else found


def _replace_assignment(match: re.Match[str], replace: Replace) -> str:
    """Replace the value of a variable; numbers, such as device masks and switches, are kept.

    So are UUIDs, as in labels of metrics: those that are left stand for others.
    """
    value = match["value"]
    if _HARMLESS_VALUE.fullmatch(value) or _UUID.fullmatch(value.strip("\"'")):
        return match[0]
    return match["keep"] + replace("environment", match["value"])
