"""All targets: those of the hardware matrix, and those that installed packages add.

The matrix's files were checked when it was built, and one is read when it is asked for. Packages'
files are checked against all others, so that where there are any, all files are read.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError, TargetError, TargetNotFound
from portagpu.base.paths import matrix_dir
from portagpu.base.text import did_you_mean, escaped, short_repr
from portagpu.facts.arch import base_name
from portagpu.facts.targets.model import normalise
from portagpu.facts.targets.read import (
    Catalogue,
    check_unambiguous,
    open_folder,
    read_folder,
    read_target,
)
from portagpu.facts.targets.toml import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint
    from importlib.resources.abc import Traversable

    from portagpu.facts.targets.model import Match, Target
    from portagpu.facts.targets.read import Family, OpenFolder

ENTRY_POINTS: Final = "portagpu.targets"
FILES: Final = "PORTAGPU_TARGETS"
"""The variable that names files of further products, separated as the folders of ``PATH`` are."""


@dataclass(frozen=True, slots=True)
class TargetProblem:
    """An installed package whose targets could not be used, and why, in one line."""

    entry_point: str
    reason: str


@dataclass(frozen=True, slots=True)
class _AllTargets:
    """``targets`` are by id, in order; ``catalogue`` is what files may refer to."""

    targets: Mapping[str, Target]
    catalogue: Catalogue
    problems: tuple[TargetProblem, ...]


def _package_folder(entry_point: EntryPoint) -> Path:
    """The folder of the module that an entry point names; only its parent packages are imported."""
    from importlib.util import find_spec

    spec = find_spec(entry_point.module)
    if spec is None:
        raise TargetError(f"there is no module {entry_point.module}")
    places = list(spec.submodule_search_locations or ())
    if not places and spec.origin:
        places = [str(Path(spec.origin).parent)]
    for place in places:
        if Path(place).is_dir():
            return Path(place)
    raise TargetError(f"module {entry_point.module} is not a folder on disk")


def _with_packages(catalogue: Catalogue, entry_points: Iterable[EntryPoint]) -> _AllTargets:
    """``catalogue`` together with what packages add to it."""
    problems: list[TargetProblem] = []
    points = sorted(entry_points, key=lambda point: (point.name, point.value))
    if not points:
        return _AllTargets(MappingProxyType(catalogue.targets), catalogue, ())
    # all of the matrix first: what is wrong in it is not a package's fault
    catalogue = Catalogue(
        dict(catalogue.sources), dict(catalogue.families), dict(catalogue.targets)
    )
    for each in points:
        try:
            catalogue = read_folder(_package_folder(each), catalogue)
        except PortagpuError as error:
            problems.append(TargetProblem(each.name, str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - another distribution's package may do anything
            problems.append(TargetProblem(each.name, escaped(f"{type(error).__name__}: {error}")))
    targets = dict(sorted(catalogue.targets.items()))
    return _AllTargets(MappingProxyType(targets), catalogue, tuple(problems))


def _with_files(known: _AllTargets, files: Iterable[Path]) -> _AllTargets:
    """``known`` together with files of products, each with the sources and families next to it."""
    catalogue, problems = known.catalogue, list(known.problems)
    for file in files:
        try:
            catalogue = read_folder(file.parent, catalogue, [file])
        except TargetError as error:
            problems.append(TargetProblem(escaped(str(file)), str(error)))
    targets = dict(sorted(catalogue.targets.items()))
    return _AllTargets(MappingProxyType(targets), catalogue, tuple(problems))


def files_of_targets() -> list[Path]:
    """The files that ``PORTAGPU_TARGETS`` names."""
    return [Path(name) for name in os.environ.get(FILES, "").split(os.pathsep) if name]


def _folder() -> Traversable:
    try:
        return matrix_dir() / "targets"
    except PortagpuError:
        from importlib.resources import files

        # a wheel that is run as it is, without being unpacked
        zipped = files("portagpu") / "_matrix" / "targets"
        if zipped.is_dir():
            return zipped
        raise


@functools.cache
def _matrix() -> OpenFolder:
    return open_folder(_folder())


@functools.cache
def _all_targets() -> _AllTargets:
    # takes time to import, and most callers have it already
    from portagpu.base.plugins import entry_points

    found = _with_packages(_matrix(), entry_points(ENTRY_POINTS))
    files = files_of_targets()
    return _with_files(found, files) if files else found


def _same_facts(one: Target, other: Target) -> bool:
    return all(getattr(one, each.name) == getattr(other, each.name) for each in fields(one))


def file_of(target: Target) -> Path | None:
    """The file that ``PORTAGPU_TARGETS`` names for a target; None for those that are installed."""
    return next((file for file in files_of_targets() if file.stem == target.id), None)


def use_target_file(path: Path) -> Target:
    """The target in a file, which this process and its children know from now on.

    :param path: its name is the target's id with the ending ".toml". ``sources.toml`` and the
        folder ``families`` next to it are read too.
    :raises TargetError: with file, key and rule; also where the id is another target's.
    """
    known = load_targets().get(path.stem)
    if known is not None and _same_facts(known, parse_target(path)):
        return known
    target = read_folder(path.parent, _all_targets().catalogue, [path]).targets[path.stem]
    os.environ[FILES] = os.pathsep.join([*map(str, files_of_targets()), str(path.absolute())])
    _all_targets.cache_clear()
    return target


@functools.cache
def _family_target(family: Family) -> Target:
    return family.target()


def load_targets() -> Mapping[str, Target]:
    """Every target by id, of the matrix and of installed packages; each is read once.

    A target is read when it is first asked for, which raises TargetError when its file is wrong. A
    wrong installed package is left out, and :func:`target_problems` lists it.
    """
    return _all_targets().targets


def target_problems() -> tuple[TargetProblem, ...]:
    """The installed packages whose targets were left out, and why."""
    return _all_targets().problems


def wrong_files() -> tuple[str, ...]:
    """What was wrong in files of the matrix that this process has asked for, one line each."""
    return tuple(_matrix().problems)


def load_target(target_id: str) -> Target:
    """The target of that id, from its own file.

    Raises TargetNotFound, which offers the closest ids and names the packages that were left out,
    and TargetError when its file is wrong.
    """
    # no package can replace one of the matrix
    if target_id in _matrix().targets:
        return _matrix().targets[target_id]
    targets = load_targets()
    if target_id in targets:
        return targets[target_id]
    offer = did_you_mean(target_id, targets, f"there is {', '.join(targets)}", 3)
    missing = [
        f"the targets of {e.entry_point} are left out: {e.reason}" for e in target_problems()
    ]
    raise TargetNotFound("; ".join([f"there is no target {target_id!r}", offer, *missing]))


def load_architecture(name: str) -> Target:
    """The target, of scope "family", of an architecture: "sm_90", "gfx942" or an alias.

    Suffixes of features are ignored ("sm_90a", "gfx942:xnack-"). Raises TargetNotFound, which lists
    the known architectures.
    """
    found = _family(None, base_name(name))
    if found is not None:
        return _family_target(found)
    known = architecture_names()
    offer = _architecture_hint(name) or did_you_mean(name, known, "", 3)
    hint = f"{offer} known are {', '.join(known)}".strip()
    raise TargetNotFound(f"there is no architecture {short_repr(name)}; {hint}")


def _family(vendor: str | None, name: str) -> Family | None:
    """The family with that id or alias, of any vendor for None."""
    catalogue = _all_targets().catalogue
    # its id first: the other families need not be looked at then
    for family in dict.fromkeys([name, *catalogue.families]):
        if family not in catalogue.families:
            continue
        own, aliases = catalogue.family_names(family)
        if vendor in (None, own) and name in (family, *aliases):
            return catalogue.families[family]
    return None


def _architecture_hint(name: str) -> str:
    """The architectures of the targets whose id has ``name`` in it; empty where there is none."""
    word = "".join(sign for sign in name.lower() if sign.isalnum())
    catalogue = _all_targets().catalogue
    archs = sorted({catalogue.family_of(each)[1] for each in catalogue.targets if word in each})
    return (
        f"the architecture of {short_repr(name)} is {' or '.join(archs)};" if word and archs else ""
    )


def architecture_names() -> tuple[str, ...]:
    """The name of every architecture, with or without products."""
    return tuple(_all_targets().catalogue.families)


def parse_target(source: str | Path, *, file: str = "<text>") -> Target:
    """The target in a file or in TOML text, checked against the matrix's families.

    :param source: a Path, or the text itself. A file's name has to be the target's id, and no
        device may be of another target too.
    :param file: what messages call the text.
    :raises TargetError: with file, key and rule.
    """
    catalogue = _all_targets().catalogue
    if not isinstance(source, Path):
        return read_target(file, source, catalogue)
    target = read_target(source.name, read_text(source), catalogue, source.stem)
    others = (each for each in load_targets().values() if each.id != target.id)
    check_unambiguous(source.name, target, others)
    return target


def identify(
    vendor: str,
    arch: str,
    product: str | None,
    memory_bytes: int | None = None,
    unit_count: int | None = None,
) -> Target | None:
    """The target of a device as it reports itself, or None when its architecture is not known.

    A product matches by its name, where its memory and its number of units, when given, are the
    product's too. A device without a name is the one product that has its memory and its units,
    where both are given and only one product has both. Any other member of a known architecture
    gets a target of scope "family", which has no peaks, no memory and no expectations.

    :param vendor: the vendor's name: "nvidia", "amd", "cpu".
    :param arch: the architecture, with or without suffixes of features: "sm_90", "gfx942:xnack-".
    :param product: the product's name as a tool or a driver spells it; None where none is known.
    :param memory_bytes: the memory that the device reports, in bytes; None where it is not known.
    :param unit_count: the number of its SMs, CUs or cores; None where it is not known.
    :returns: the target; None for an architecture that is not in the hardware matrix.
    :raises TargetError: the target's file is wrong.
    """
    family = _family(vendor, base_name(arch))
    if family is None:
        return None
    name = normalise(product) if product else None
    candidates = _matches_of(vendor, family.id)
    for target, match in candidates.items():
        if _matches(match, name, memory_bytes, unit_count):
            return load_targets()[target]
    if name is None and memory_bytes is not None and unit_count is not None:
        fitting = [
            target
            for target, match in candidates.items()
            if _has_both(match, memory_bytes, unit_count)
        ]
        if len(fitting) == 1:
            return load_targets()[fitting[0]]
    return _family_target(family)


def _matches_of(vendor: str, family: str | None = None) -> dict[str, Match]:
    """How the products of a vendor, or of one of its families, are recognised, by target."""
    targets, catalogue = load_targets(), _all_targets().catalogue
    own = {each: catalogue.family_of(each) for each in targets}
    wanted = [each for each, (name, _) in own.items() if name == vendor]
    return {each: catalogue.match(each) for each in wanted if family in (None, own[each][1])}


def arch_of_generation(vendor: str, generation: str, product: str | None = None) -> str | None:
    """The architecture of a generation that a vendor's tool names ("Hopper").

    :param vendor: the vendor, as in ``Arch.vendor``.
    :param generation: the generation as the tool prints it; upper and lower case do not matter.
    :param product: decides where a generation has several architectures ("Ampere").
    :returns: its name ("sm_90"), or None where it is not known, or the product is not a target.
    """
    word = normalise(generation)
    families = []
    catalogue = _all_targets().catalogue
    for family in catalogue.families:
        if catalogue.family_names(family)[0] != vendor:
            continue
        fact = catalogue.families[family].facts.get("arch.generation")
        name = normalise(str(fact.value)) if fact is not None else ""
        if name and f"{word} ".startswith(f"{name} "):
            families.append(family)
    if len(families) > 1:
        of_product = {catalogue.family_of(each)[1] for each in _targets_named(vendor, product)}
        families = [name for name in families if name in of_product]
    return families[0] if len(families) == 1 else None


def named_product(vendor: str, arch: str | None, product: str | None) -> Target | None:
    """The product of this name, with any memory and units.

    :param vendor: the vendor, as in ``Arch.vendor``.
    :param arch: the architecture that it must have; None for any.
    :param product: the product's name as a tool prints it.
    :returns: None for a name that several products have, or that a part of a product also prints.
    """
    own = None if arch is None else base_name(arch)
    family_of = _all_targets().catalogue.family_of
    named = _targets_named(vendor, product)
    found = [each for each in named if own in (None, family_of(each)[1])]
    return load_targets()[found[0]] if len(found) == 1 else None


def _targets_named(vendor: str, product: str | None) -> list[str]:
    name = normalise(product) if product else ""
    matches = _matches_of(vendor) if name else {}
    return [each for each, match in matches.items() if name in match.names - match.shared]


def product_with_pci_id(vendor: str, device_id: int, revision: int | None = None) -> Target | None:
    """The product that has this PCI id, or None. An id that several products share names none.

    :param vendor: the vendor, as in ``Arch.vendor``.
    :param device_id: the PCI device id.
    :param revision: the PCI revision, which distinguishes some products of one device id.
    """
    ids = [f"{device_id:04x}"]
    if revision is not None:
        ids.append(f"{device_id:04x}:{revision:02x}")
    matches = _matches_of(vendor)
    found = (each for pci_id in ids for each in matches if pci_id in matches[each].pci_ids)
    target = next(found, None)
    return None if target is None else load_targets()[target]


def _matches(
    match: Match, name: str | None, memory_bytes: int | None, unit_count: int | None
) -> bool:
    if not match.any_product and (name is None or name not in match.names):
        return False
    if name in match.shared and (unit_count is None or match.unit_count is None):
        return False
    return _in_ranges(match, memory_bytes, unit_count)


def _has_both(match: Match, memory_bytes: int, unit_count: int) -> bool:
    """Whether the product states both, and the device has both."""
    stated = match.memory_bytes is not None and match.unit_count is not None
    return stated and _in_ranges(match, memory_bytes, unit_count)


def _in_ranges(match: Match, memory_bytes: int | None, unit_count: int | None) -> bool:
    for value, allowed in ((memory_bytes, match.memory_bytes), (unit_count, match.unit_count)):
        if value is not None and allowed is not None and not allowed[0] <= value <= allowed[1]:
            return False
    return True
