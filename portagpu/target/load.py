"""The targets that are there: of the hardware matrix, and of installed packages that bring more."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from portagpu.arch import base_name
from portagpu.errors import PortagpuError, TargetError, TargetNotFound
from portagpu.paths import matrix_dir
from portagpu.target.read import Catalogue, read_family, read_sources, read_target
from portagpu.target.table import closest, normalise, one_line, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint

    from portagpu.target.model import Match, Target
    from portagpu.target.read import Family

ENTRY_POINTS: Final = "portagpu.targets"


@dataclass(frozen=True, slots=True)
class TargetProblem:
    """An installed package whose targets could not be used, and why, in one line."""

    entry_point: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Loaded:
    targets: Mapping[str, Target]
    family_targets: Mapping[tuple[str, str], Target]
    catalogue: Catalogue
    problems: tuple[TargetProblem, ...]


def read_folder(folder: Path, base: Catalogue | None = None) -> Catalogue:
    """What ``folder`` adds to ``base``, checked, as a catalogue that holds both.

    A folder has ``<id>.toml`` for each target, ``families/<arch>.toml`` and ``sources.toml``.
    Raises TargetError at the first thing that is wrong, and leaves ``base`` as it was.
    """
    base = base or Catalogue()
    merged = Catalogue(dict(base.sources), dict(base.families), dict(base.targets))
    sources = folder / "sources.toml"
    if sources.is_file():
        for name, source in read_sources(sources.name, read_text(sources)).items():
            _once(sources.name, "sources", name, merged.sources)
            merged.sources[name] = source
    for path in sorted((folder / "families").glob("*.toml")):
        family = read_family(path.name, read_text(path), merged, path.stem)
        _once(path.name, "id", family.id, merged.families)
        merged.families[family.id] = family
    for path in sorted(folder.glob("*.toml")):
        if path.name != sources.name:
            target = read_target(path.name, read_text(path), merged, path.stem)
            _once(path.name, "id", target.id, merged.targets)
            _unambiguous(path.name, target, merged.targets.values())
            merged.targets[target.id] = target
    return merged


def _once(file: str, key: str, name: str, taken: Iterable[str]) -> None:
    if name in taken:
        raise TargetError(f"{file}: {key}: {name!r} is defined already (rule duplicate)")


def _unambiguous(file: str, new: Target, others: Iterable[Target]) -> None:
    """No device may be two products."""
    for other in others:
        if new.arch == other.arch and _overlap(new.match, other.match):
            raise TargetError(
                f"{file}: match.names: a device can be {new.id} and {other.id}; tell them apart by "
                "memory_bytes or unit_count (rule ambiguous-match)"
            )


def _overlap(one: Match, two: Match) -> bool:
    if not (one.names & two.names or (one.any_product and two.any_product)):
        return False
    ranges = ((one.memory_bytes, two.memory_bytes), (one.unit_count, two.unit_count))
    return all(
        first is None or second is None or (first[0] <= second[1] and second[0] <= first[1])
        for first, second in ranges
    )


def _folder(entry_point: EntryPoint) -> Path:
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


def _load(folder: Path, entry_points: Iterable[EntryPoint]) -> _Loaded:
    catalogue = read_folder(folder)
    problems: list[TargetProblem] = []
    for each in sorted(entry_points, key=lambda point: (point.name, point.value)):
        try:
            catalogue = read_folder(_folder(each), catalogue)
        except PortagpuError as error:
            problems.append(TargetProblem(each.name, str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's package may do anything
            problems.append(TargetProblem(each.name, one_line(f"{type(error).__name__}: {error}")))
    return _Loaded(
        MappingProxyType(dict(sorted(catalogue.targets.items()))),
        MappingProxyType(_by_name(catalogue.families.values())),
        catalogue,
        tuple(problems),
    )


def _by_name(families: Iterable[Family]) -> dict[tuple[str, str], Target]:
    named: dict[tuple[str, str], Target] = {}
    for family in families:
        target = family.target()
        for name in (family.id, *family.aliases):
            named[family.vendor, name] = target
    return named


@functools.cache
def _loaded() -> _Loaded:
    # takes longer to import than the targets take to read, and most callers have it already
    from portagpu.distributions import entry_points

    return _load(matrix_dir() / "targets", entry_points(ENTRY_POINTS))


def load_targets() -> Mapping[str, Target]:
    """Every target by id, of the matrix and of installed packages; read once.

    Raises TargetError when a file of the matrix itself is wrong. What is wrong in an installed
    package is left out and listed by :func:`target_problems`.
    """
    return _loaded().targets


def target_problems() -> tuple[TargetProblem, ...]:
    """The installed packages whose targets were left out, and why."""
    return _loaded().problems


def load_target(target_id: str) -> Target:
    """The target of that id. Raises TargetNotFound that offers the closest ids."""
    targets = load_targets()
    if target_id in targets:
        return targets[target_id]
    near = closest(target_id, targets)
    offer = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(targets)}"
    raise TargetNotFound(f"there is no target {target_id!r}; {offer}")


def parse_target(source: str | Path, *, file: str = "<text>") -> Target:
    """The target in a file (a Path) or in TOML text, checked against the matrix's families.

    ``file`` names the text in messages. A file's name has to be the target's id. Raises TargetError
    with file, key and rule.
    """
    catalogue = _loaded().catalogue
    if isinstance(source, Path):
        return read_target(source.name, read_text(source), catalogue, source.stem)
    return read_target(file, source, catalogue)


def identify(
    vendor: str,
    arch: str,
    product: str | None,
    memory_bytes: int | None = None,
    unit_count: int | None = None,
) -> Target | None:
    """The target of a device as it reports itself, or None when its architecture is not known.

    A product matches by its name, where its memory and its number of units, when given, are the
    product's too. Any other member of a known architecture gets a target of scope "family", which
    has no peaks, no memory and no expectations.
    """
    loaded = _loaded()
    family = loaded.family_targets.get((vendor, base_name(arch)))
    if family is None:
        return None
    name = None if product is None else normalise(product)
    for target in loaded.targets.values():
        if target.arch == family.arch and _is(target.match, name, memory_bytes, unit_count):
            return target
    return family


def _is(match: Match, name: str | None, memory_bytes: int | None, unit_count: int | None) -> bool:
    if not match.any_product and (name is None or name not in match.names):
        return False
    for value, allowed in ((memory_bytes, match.memory_bytes), (unit_count, match.unit_count)):
        if value is not None and allowed is not None and not allowed[0] <= value <= allowed[1]:
            return False
    return True
