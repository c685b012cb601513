"""A folder of targets that is read file by file says what a whole read of it says."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tomllib
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import TargetError, TargetNotFound
from portagpu.base.paths import matrix_dir
from portagpu.facts.targets import load
from portagpu.facts.targets import read as folders
from portagpu.facts.targets.read import open_folder, read_folder, split_sources
from portagpu.runs.judges.gpu_health import declaration_problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from portagpu.facts.targets import Match

OWN = matrix_dir() / "targets"
H100 = "nvidia-h100-sxm"
TEXT = (OWN / f"{H100}.toml").read_text(encoding="utf-8")


def fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(OWN, tmp_path / "targets")
    return tmp_path / "targets"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a folder the matrix's, without a package that adds to it."""

    def take(path: Path) -> None:
        matrix = open_folder(path)
        everything = load._with_packages(matrix, [])
        monkeypatch.setattr(load, "_matrix", lambda: matrix)
        monkeypatch.setattr(load, "_all_targets", lambda: everything)

    return take


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} has {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_each_file_alone_says_what_the_whole_check_says() -> None:
    """The whole check of all that ships; the two ways of reading are compared field by field."""
    whole, opened = read_folder(OWN), open_folder(OWN)
    assert list(opened.targets) == sorted(whole.targets)
    assert list(opened.families) == sorted(whole.families)
    assert dict(opened.sources) == whole.sources
    for family in whole.families:
        assert fields(opened.families[family]) == fields(whole.families[family])
        assert opened.family_names(family) == whole.family_names(family)
    for target in whole.targets:
        assert fields(opened.targets[target]) == fields(whole.targets[target])
        assert opened.family_of(target) == whole.family_of(target)
        assert opened.match(target) == whole.match(target)
    assert not opened.problems


def test_no_file_that_ships_is_of_a_form_that_is_read_whole() -> None:
    sources = (OWN / "sources.toml").read_text(encoding="utf-8")
    assert set(split_sources("sources.toml", sources)) == set(tomllib.loads(sources)["sources"])
    for path in OWN.rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert '"""' not in text and "'''" not in text, f"{path.name} has a text of several lines"


def test_an_architecture_has_one_name_for_each_vendor() -> None:
    names = [
        (family.vendor, name)
        for family in read_folder(OWN).families.values()
        for name in (family.id, *family.aliases)
    ]
    assert len(set(names)) == len(names)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read whole, from now on."""
    found: list[str] = []

    def noting(read: Callable[..., Any], file: str, *rest: Any) -> Any:
        found.append(file)
        return read(file, *rest)

    for name in ("read_family", "read_target"):
        monkeypatch.setattr(folders, name, partial(noting, getattr(folders, name)))
    return found


@pytest.mark.parametrize(
    ("ask", "files"),
    [
        (lambda: load.load_target(H100), [f"{H100}.toml", "sm_90.toml"]),
        (lambda: load.load_architecture("sm_90a"), ["sm_90.toml"]),
        (lambda: load.load_architecture("x86_64"), ["x86-64.toml"]),
        (load.architecture_names, []),
        (lambda: H100 in load.load_targets(), []),
        (
            lambda: load.identify("nvidia", "sm_90", "NVIDIA H100 80GB HBM3"),
            [f"{H100}.toml", "sm_90.toml"],
        ),
        (lambda: load.identify("nvidia", "sm_90", "NVIDIA H999"), ["sm_90.toml"]),
        (lambda: load.identify("cpu", "x86_64", "any"), ["cpu-x86-64.toml", "x86-64.toml"]),
        (lambda: load.product_with_pci_id("nvidia", 0x2330), [f"{H100}.toml", "sm_90.toml"]),
        (lambda: load.named_product("nvidia", None, "NVIDIA L4"), ["nvidia-l4.toml", "sm_89.toml"]),
    ],
    ids=["id", "arch", "alias", "archs", "in", "name", "other name", "cpu", "pci id", "named"],
)
def test_only_what_is_asked_for_is_read(
    ask: Callable[[], object],
    files: list[str],
    use: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = reads(monkeypatch)
    use(OWN)
    first = ask()
    assert sorted(found) == sorted(files)
    assert first is ask() or not files
    assert sorted(found) == sorted(files), "nothing is read again"


def test_a_target_is_one_object_however_it_is_found(use: Callable[[Path], None]) -> None:
    use(OWN)
    target = load.load_target(H100)
    assert target is load.load_targets()[H100]
    assert target is load.identify("nvidia", "sm_90", "NVIDIA H100 80GB HBM3")
    assert target is load.product_with_pci_id("nvidia", 0x2330)
    assert target is load._with_packages(load._matrix(), [_no_package()]).targets[H100]


def _no_package() -> Any:
    from importlib.metadata import EntryPoint

    return EntryPoint("absent", "portagpu_no_such_module", load.ENTRY_POINTS)


# documents that are right and written in another way

NAMES = 'names = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB", "NVIDIA H100-SXM5-80GB"]'
TRAP = '[match]\nnames = ["NVIDIA Other"]\nmemory_bytes = [1, 2]\n'


def _text_of_several_lines(quotes: str) -> str:
    """A text that looks like a table, and the real table after it."""
    reason = f"[[expected_failures]]\ncase_id_pattern = {quotes}\n{TRAP}{quotes}\n"
    return TEXT.replace("\n[match]\n", f"\n{reason}\n[match]\n")


def _moved_match(before: str) -> str:
    """The table of the match at the end of the document, with what is written before it."""
    start = TEXT.index("[match]")
    end = TEXT.index("[facts.exec]")
    return TEXT[:start] + TEXT[end:] + before + TEXT[start:end]


FORMS = {
    "text of several lines": _text_of_several_lines('"""'),
    "literal text of several lines": _text_of_several_lines("'''"),
    "carriage returns": TEXT.replace("\n", "\r\n"),
    "last": _moved_match("\n"),
    "indented header": TEXT.replace("\n[match]", "\n  [match]"),
    "blanks in the header": TEXT.replace("\n[match]", "\n[ match ]"),
    "quoted header": TEXT.replace("\n[match]", '\n["match"]'),
    "header with a comment": TEXT.replace("\n[match]", "\n[match] # [facts]"),
    "names in lines": TEXT.replace(NAMES, NAMES.replace("[", "[\n  ").replace("]", "\n]")),
    "header in a comment": TEXT.replace(
        "\n[match]", f"\n# {TRAP.replace(chr(10), chr(10) + '# ')}\n[match]"
    ),
    "dotted": TEXT.replace("\n[match]\n", "\n")
    .replace(NAMES, f"match.{NAMES}")
    .replace("\nmemory_bytes", "\nmatch.memory_bytes")
    .replace("\nunit_count = [", "\nmatch.unit_count = [")
    .replace(
        '\nsource = ["DEV-H100-SMI", "DEV-H100-TORCH"]',
        '\nmatch.source = ["DEV-H100-SMI", "DEV-H100-TORCH"]',
    )
    .replace("\npci_", "\nmatch.pci_"),
    "escaped": TEXT.replace('family = "sm_90"', 'family = "sm_\\u0039\\u0030"'),
    "quoted keys": TEXT.replace("family =", '"family" =').replace("vendor =", "'vendor' ="),
    "claims in lines": TEXT.replace(
        'family = "sm_90"', 'claims = [\n"streams",\n# [match]\n"events",\n]\nfamily = "sm_90"'
    ),
    "array of arrays": _moved_match("\n").replace("[132, 132]", "[\n132,\n132\n]"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_document_changes_nothing(folder: Path, form: str) -> None:
    """The oracle is the whole document, read by tomllib."""
    text = FORMS[form]
    assert text != TEXT
    (folder / f"{H100}.toml").write_bytes(text.encode())
    document = tomllib.loads(text)
    assert document["match"]["memory_bytes"] == [83751000000, 86974000000], "the form is right"
    opened = open_folder(folder)
    match: Match = opened.match(H100)
    assert match.memory_bytes == (83751000000, 86974000000)
    assert match.unit_count == (132, 132)
    assert match.name == "NVIDIA H100 80GB HBM3"
    assert match.pci_ids == {"2330"}
    assert opened.family_of(H100) == ("nvidia", "sm_90")


SOURCE_FORMS = {
    "text of several lines": (
        "[sources.N-PTXAS]",
        '[sources.X]\nkind = "a"\nwhere = """b\n[sources.Y]\n"""\n',
    ),
    "indented header": ("[sources.N-PTXAS]", '  [sources.X]\nkind = "a"\nwhere = "b"\n'),
    "quoted header": ("[sources.N-PTXAS]", '[sources."X"]\nkind = "a"\nwhere = "b"\n'),
    "blanks": ("[sources.N-PTXAS]", '[ sources.X ]\nkind = "a"\nwhere = "b"\n'),
    "one line": ("[sources.L-LLVM22]", 'sources.X = { kind = "a", where = "b" }\n'),
    "indented first": ("[sources.L-LLVM22]", ' [sources.X]\nkind = "a"\nwhere = "b"\n'),
    "plain": ("[sources.N-PTXAS]", '[sources.X]\nkind = "a"\nwhere = "b"\n'),
}


@pytest.mark.parametrize("form", SOURCE_FORMS)
def test_the_form_of_the_sources_changes_nothing(folder: Path, form: str) -> None:
    header, source = SOURCE_FORMS[form]
    edit(folder / "sources.toml", header, f"{source}{header}")
    try:
        whole = read_folder(folder).sources
    except TargetError as error:
        assert form == "text of several lines", "the others are right"
        with pytest.raises(TargetError, match=re.escape(str(error))):
            open_folder(folder)
        return
    opened = open_folder(folder).sources
    assert set(opened) == set(whole)
    assert opened["X"] == whole["X"]
    assert opened["N-PTXAS"] == whole["N-PTXAS"]


# files that are wrong


def test_a_wrong_file_stops_only_what_asks_for_it(
    folder: Path, use: Callable[[Path], None]
) -> None:
    edit(folder / "amd-mi300x.toml", "[304, 304]", "[304]")
    use(folder)
    assert load.load_target(H100).arch.name == "sm_90"
    assert load.identify("nvidia", "sm_90", "NVIDIA H100 80GB HBM3").id == H100
    assert not load.wrong_files()
    for ask in (
        lambda: load.load_target("amd-mi300x"),
        lambda: load.identify("amd", "gfx942", "AMD Instinct MI300X"),
        lambda: load.product_with_pci_id("amd", 0x74A1),
    ):
        with pytest.raises(TargetError, match=r"^amd-mi300x\.toml: match\.unit_count: .*range"):
            ask()
    (wrong,) = load.wrong_files()
    assert f"no target is matched: {wrong}" in declaration_problems()


def test_a_wrong_source_is_named_with_its_line(folder: Path) -> None:
    edit(folder / "sources.toml", "[sources.AZ-NHC]\n", "[sources.AZ-NHC]\n= 1\n")
    lines = (folder / "sources.toml").read_text(encoding="utf-8").splitlines()
    opened = open_folder(folder)
    assert opened.targets["cpu-x86-64"].vendor == "cpu", "it refers to other sources"
    line = lines.index("= 1") + 1
    with pytest.raises(TargetError, match=rf"^sources\.toml: .*line {line}, column 1.*toml-syntax"):
        assert opened.targets[H100].all_expectations


def test_a_file_of_another_name_is_not_a_target(folder: Path, use: Callable[[Path], None]) -> None:
    (folder / f"{H100}.toml").rename(folder / "nvidia-h101.toml")
    use(folder)
    with pytest.raises(TargetNotFound):
        load.load_target(H100)
    with pytest.raises(TargetError, match=r"^nvidia-h101\.toml: id: .*\(rule id-is-file-name\)"):
        load.identify("nvidia", "sm_90", "NVIDIA H100 80GB HBM3")


def test_a_new_file_is_found_without_any_other_step(
    folder: Path, use: Callable[[Path], None]
) -> None:
    text = TEXT.replace(H100, "nvidia-h101").replace(NAMES, 'names = ["NVIDIA H101"]')
    (folder / "nvidia-h101.toml").write_text(text.replace('"2330"', '"fff1"'), encoding="utf-8")
    use(folder)
    new = load.load_target("nvidia-h101")
    assert new is load.identify("nvidia", "sm_90", "NVIDIA H101")
    assert new is load.product_with_pci_id("nvidia", 0xFFF1)


def test_a_file_alone_is_checked_against_all_others(
    folder: Path, use: Callable[[Path], None]
) -> None:
    use(folder)
    assert load.parse_target(folder / f"{H100}.toml").id == H100, "it is not a rival of itself"
    rival = folder / "nvidia-h101.toml"
    rival.write_text(TEXT.replace(H100, "nvidia-h101"), encoding="utf-8")
    with pytest.raises(TargetError, match=r"^nvidia-h101\.toml: match\.names: .*ambiguous-match"):
        load.parse_target(rival)


def test_a_package_is_not_blamed_for_a_wrong_file_of_the_matrix(folder: Path) -> None:
    edit(folder / "amd-mi300x.toml", "[304, 304]", "[304]")
    with pytest.raises(TargetError, match=r"^amd-mi300x\.toml: "):
        load._with_packages(open_folder(folder), [_no_package()])


def test_a_zipped_folder_is_read(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as into:
        for path in OWN.rglob("*.toml"):
            into.write(path, path.relative_to(OWN.parent))
    with zipfile.ZipFile(archive) as zipped:
        opened = open_folder(zipfile.Path(zipped, "targets/"))
        assert fields(opened.targets[H100]) == fields(read_folder(OWN).targets[H100])
        assert list(opened.families) == list(open_folder(OWN).families)
