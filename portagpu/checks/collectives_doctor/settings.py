"""Settings of a machine, live or recorded, that make collectives hang or crawl.

What the kernel, limits, masks and GPUs say is judged where that is known already
(``portagpu.checks.diagnostics``). Here are the library's own variables, its configuration files,
and the network interfaces. Files: Linux ``Documentation/ABI/testing/sysfs-class-net``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.checks.collectives_doctor.findings import TABLE, Finding, known_findings, own_table
from portagpu.checks.diagnostics import settings_diagnostics, shared_memory_diagnostics
from portagpu.facts.host import read_host, visibility
from portagpu.facts.host.machine import read_settings
from portagpu.facts.vendors import leave_out_table, tables, vendors
from portagpu.facts.visible import diagnose, relevant_runtimes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portagpu.facts.host.tree import Tree
    from portagpu.machine.inventory.sources import Machine

_NETWORK: Final = "sys/class/net"
_RDMA: Final = "sys/class/infiniband"
# RDMA over Ethernet takes the largest of 1024, 2048 and 4096 bytes that fits into the interface's
# packets with their headers (InfiniBand Architecture Specification, annex A17)
_SMALL_MTU: Final = 4200
# buffers of 4 MiB and more for each channel and peer are registered; the guides ask for no limit
_SMALL_LOCKED_BYTES: Final = 1 << 30
_LOOPBACK: Final = re.compile(r"lo|docker\d*|virbr\d*|veth.*")
_MAX_FILE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable that is a finding where it is set to a value that fits."""

    name: re.Pattern[str]
    finding: str
    value: re.Pattern[str]
    why: str


@dataclass(frozen=True, slots=True)
class _Interfaces:
    """A variable that names network interfaces; ``selects`` where it knows ^, = and prefixes."""

    variable: str
    selects: bool


@dataclass(frozen=True, slots=True)
class _Configuration:
    """Files with variables for a library: the machine's, the user's, and what names another.

    ``build`` is the kind of torch's build that uses that library.
    """

    system: str
    user: str
    variable: str
    build: str = ""


@dataclass(frozen=True, slots=True)
class _Tables:
    variables: tuple[_Variable, ...]
    interfaces: tuple[_Interfaces, ...]
    configurations: tuple[_Configuration, ...]
    foreign: Mapping[str, re.Pattern[str]]
    """By torch's kind of build, the variables that only its vendor's stack reads."""
    kernel_options: Mapping[str, tuple[str, ...]]
    """By vendor, what the kernel must be built with."""


@cache
def _tables() -> _Tables:
    variables: list[_Variable] = []
    interfaces: list[_Interfaces] = []
    configurations: list[_Configuration] = []
    foreign: dict[str, re.Pattern[str]] = {}
    options: dict[str, tuple[str, ...]] = {}
    for vendor, table in [("", own_table()), *dict(tables(TABLE)).items()]:
        build = (vendors()[vendor].torch_build or "") if vendor else ""
        try:
            own = [_variable(each) for each in table.get("variable", ())]
            named = [_Interfaces(**each) for each in table.get("interfaces", ())]
            files = [_Configuration(**each, build=build) for each in table.get("configuration", ())]
            only = re.compile(table["only_here"]) if "only_here" in table else None
            if unknown := [each.finding for each in own if each.finding not in known_findings()]:
                raise ValueError(f"unknown finding {unknown[0]!r}")
        except (KeyError, TypeError, ValueError, re.error) as error:
            leave_out_table(vendor, TABLE, error)
            continue
        variables += own
        interfaces += named
        options[vendor] = tuple(map(str, table.get("kernel_options", ())))
        configurations += files
        if only is not None and build:
            foreign[build] = only
    return _Tables(tuple(variables), tuple(interfaces), tuple(configurations), foreign, options)


def _variable(each: Mapping[str, Any]) -> _Variable:
    return _Variable(
        re.compile(each["name"]), each["finding"], re.compile(each.get("value", ".*")), each["why"]
    )


def judge_machine(machine: Machine) -> Iterator[Finding]:
    """The findings on the machine's settings.

    A recording has of the environment only masks, and of interfaces and files what it holds.
    """
    tree, host = machine.tree, read_host(machine.tree)
    gpus = machine.inventory().gpus
    build = machine.torch()
    kind = build.kind if build is not None else None
    files = _read_files(machine, kind)
    in_files = {name: value for lines in reversed(files.values()) for name, value in lines.items()}
    stated = {**in_files, **machine.environment}
    links = _network_interfaces(tree)
    settings = read_settings(tree, (gpu.pci for gpu in gpus if gpu.pci is not None))
    evidence = _summary(machine, len(gpus), links)
    if len(gpus) > 1 and settings.acs_redirects is None:
        evidence += "; whether ACS is on cannot be read (root can)"
    nothing = not (tree.is_live or gpus or links or stated or host.kernel.release)
    if nothing:
        evidence = "the recording shows neither a GPU, nor a network interface, nor the kernel"
    yield Finding(id="no-settings" if nothing else "machine", evidence=evidence)
    for sentence in settings_diagnostics(settings, gpus, len(host.cpu.numa_nodes)):
        yield Finding(id="kernel-setting", evidence=sentence)
    yield from _kernel_options(tree, host.kernel.release, [gpu.vendor for gpu in gpus])
    for sentence in shared_memory_diagnostics(host.limits):
        yield Finding(id="small-shared-memory", evidence=sentence)
    locked = host.limits.ulimits.locked_memory_bytes
    cards = tree.names(_RDMA)
    if cards and isinstance(locked, int) and locked < _SMALL_LOCKED_BYTES:
        evidence = f"{locked >> 10} KiB may be locked (ulimit -l), and there is {', '.join(cards)}"
        yield Finding(id="small-locked-memory", evidence=evidence)
    for runtime in relevant_runtimes(kind, (gpu.vendor for gpu in gpus)):
        for problem in diagnose(visibility(machine.environment), runtime):
            name = "mask" if problem.harmful else "mask-advice"
            yield Finding(id=name, evidence=problem.message)
    yield from _configured(machine, files)
    yield from _variables(stated, kind)
    for each in _tables().interfaces:
        if value := stated.get(each.variable, "").strip():
            yield from _interface_problems(each, value, links)
    yield from _small_packets(tree, cards)


def _summary(machine: Machine, gpus: int, links: Mapping[str, _Link]) -> str:
    known = ", ".join(f"{n} (MTU {e.mtu})" for n, e in links.items() if n != "lo") or "not known"
    where = "this machine" if machine.tree.is_live else "a recording or another root"
    return f"{where}: {gpus} GPUs; network interfaces: {excerpt(known, 300)}"


def _variables(stated: Mapping[str, str], kind: str | None) -> Iterator[Finding]:
    own = _tables().foreign.get(kind or "")
    for name, value in sorted(stated.items()):
        for each in _tables().variables:
            if each.name.fullmatch(name) and each.value.fullmatch(value.strip()):
                evidence = f"{name}={excerpt(value, 60)}: {each.why}"
                yield Finding(id=each.finding, evidence=evidence, device=name)
                break
        for build, only in _tables().foreign.items():
            if kind in _tables().foreign and build != kind and only.fullmatch(name):
                if own is not None and own.fullmatch(name):
                    continue
                evidence = f"{name} is read by stacks of {build}, and torch is built for {kind}"
                yield Finding(id="foreign-variable", evidence=evidence, device=name)


def _kernel_options(tree: Tree, release: str | None, gpus: Sequence[str]) -> Iterator[Finding]:
    """Options that the kernel of several GPUs of one vendor lacks; none where its file is away."""
    lines = (tree.data(f"boot/config-{release}") or b"").splitlines() if release else []
    for vendor, wanted in _tables().kernel_options.items():
        lacking = [each for each in wanted if f"{each}=y".encode() not in lines]
        if lines and lacking and gpus.count(vendor) > 1:
            evidence = f"/boot/config-{release} has no {' and no '.join(lacking)}"
            yield Finding(id="kernel-option", evidence=evidence)


# ---- configuration files


def _configured(machine: Machine, files: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    missing = {
        (each.variable, named)
        for each in _tables().configurations
        if (named := machine.environment.get(each.variable, "")) and machine.tree.is_live
        if not machine.tree.exists(named.lstrip("/"))
    }
    for variable, named in sorted(missing):
        evidence = f"{variable}={excerpt(named, 100)}, which does not exist"
        yield Finding(id="configuration-missing", evidence=evidence, device=variable)
    for path, lines in files.items():
        good = [f"{name}={value}" for name, value in lines.items() if re.fullmatch(r"\w+", name)]
        if good:
            shown = excerpt(", ".join(good[:8]), 300)
            evidence = f"/{path} sets {shown}"
            yield Finding(id="configuration-file", evidence=evidence, device=f"/{path}")
        for name in lines:
            if not re.fullmatch(r"\w+", name):
                evidence = f"/{path} sets a variable of the name {excerpt(name, 60)!r}"
                yield Finding(id="configuration-line", evidence=evidence, device=f"/{path}")


def _read_files(machine: Machine, kind: str | None) -> dict[str, dict[str, str]]:
    """The variables in each file that the library reads, the file that counts first in front.

    Where torch is built for one vendor, those of the others are not read.
    """
    known = {each.build for each in _tables().configurations}
    found: dict[str, dict[str, str]] = {}
    for each in _tables().configurations:
        if kind in known and each.build != kind:
            continue
        named, home = (machine.environment.get(name, "") for name in (each.variable, "HOME"))
        user = named or (f"{home}/{each.user}" if home else "")
        for path in (user.lstrip("/"), each.system):
            if path and (lines := _file_settings(machine.tree, path)):
                found[path] = lines
    return found


def _file_settings(tree: Tree, path: str) -> dict[str, str]:
    """What a configuration file sets, as the library reads it: no blank or quote is removed."""
    data = (tree.data(path) or b"")[:_MAX_FILE_BYTES]
    lines = data.decode(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, equals, value in reversed(list(pairs)) if equals}


# ---- network interfaces


@dataclass(frozen=True, slots=True)
class _Link:
    """A network interface: its state as the kernel says ("up", "down"), and its MTU in bytes."""

    state: str | None
    mtu: int | None


def _network_interfaces(tree: Tree) -> dict[str, _Link]:
    return {
        name: _Link(
            tree.text(f"{_NETWORK}/{name}/operstate"), tree.integer(f"{_NETWORK}/{name}/mtu")
        )
        for name in tree.names(_NETWORK)
        if tree.exists(f"{_NETWORK}/{name}/mtu")
    }


def _interface_problems(
    each: _Interfaces, value: str, links: Mapping[str, _Link]
) -> Iterator[Finding]:
    shown = f"{each.variable}={excerpt(value, 80)}"
    text, excludes, exact = value, False, not each.selects
    if each.selects:
        excludes = text.startswith("^")
        text = text.removeprefix("^")
        exact = text.startswith("=")
        text = text.removeprefix("=")
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if _is_address(name):
            yield Finding(
                id="interface-address",
                evidence=f"{shown}: {name} is an address, and interfaces have names",
                device=each.variable,
            )
            return
    if not each.selects and (text[:1] in ("^", "=") or any(":" in name for name in names)):
        yield Finding(
            id="interface-syntax",
            evidence=f"{shown}: it takes names with commas between them, and nothing else",
            device=each.variable,
        )
        return
    chosen = _chosen(names, links, exact=exact, excludes=excludes)
    if links and not chosen:
        yield Finding(
            id="interface-missing",
            evidence=f"{shown} fits none of {excerpt(', '.join(links), 200)}",
            device=each.variable,
        )
    missing = [name for name in names if exact and not excludes and links and name not in links]
    if missing and chosen:
        yield Finding(
            id="interface-missing",
            evidence=f"{shown}: this machine has no {', '.join(missing)}",
            device=each.variable,
        )
    down = [name for name in chosen if links[name].state == "down"]
    if down and len(down) == len(chosen):
        yield Finding(
            id="interface-down",
            evidence=f"{shown}: {', '.join(down)} is down",
            device=each.variable,
        )
    if chosen and not excludes and all(_LOOPBACK.fullmatch(name) for name in chosen):
        yield Finding(
            id="interface-local",
            evidence=f"{shown}: {', '.join(chosen)} reaches no other machine",
            device=each.variable,
        )
    mtus = sorted({mtu for name in chosen if (mtu := links[name].mtu) and name != "lo"})
    if len(mtus) > 1 and not excludes:
        evidence = f"{shown}: the interfaces have MTUs of {', '.join(map(str, mtus))}"
        yield Finding(id="mtu-differs", evidence=evidence, device=each.variable)


def _chosen(
    names: Sequence[str], links: Mapping[str, _Link], *, exact: bool, excludes: bool
) -> list[str]:
    def fits(link: str) -> bool:
        return any(link == name if exact else link.startswith(name) for name in names)

    return [link for link in links if fits(link) != excludes]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
    return True


def _small_packets(tree: Tree, cards: Sequence[str]) -> Iterator[Finding]:
    """RDMA over Ethernet interfaces whose packets are small."""
    for card in cards:
        ports = tree.names(f"{_RDMA}/{card}/ports")
        if not any(tree.text(f"{_RDMA}/{card}/ports/{p}/link_layer") == "Ethernet" for p in ports):
            continue
        for name in tree.names(f"{_RDMA}/{card}/device/net"):
            mtu = tree.integer(f"{_NETWORK}/{name}/mtu")
            if mtu is not None and mtu < _SMALL_MTU:
                evidence = f"{card} sends over {name}, whose MTU is {mtu}"
                yield Finding(id="small-mtu", evidence=evidence, device=card)
