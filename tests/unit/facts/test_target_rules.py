"""Every rule refuses what it is there for, and says in which file, at which key, and why."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from portagpu.base.errors import TargetError
from portagpu.base.paths import matrix_dir
from portagpu.facts.targets import parse_target
from portagpu.facts.targets import rules as target_rules
from portagpu.facts.targets.read import read_folder
from tests.conftest import ROOT

MUTATIONS = tomllib.loads((ROOT / "tests/support/target_mutations.toml").read_text("utf-8"))
H200 = "nvidia-h200-sxm.toml"
MI300X = "amd-mi300x.toml"


def text_of(file: str) -> str:
    return (matrix_dir() / "targets" / file).read_text(encoding="utf-8")


def changed(file: str, old: str, new: str) -> str:
    text = text_of(file)
    assert text.count(old) >= 1, f"{file} no longer has {old!r}: the test changes nothing"
    return text.replace(old, new, 1)


def refusal(text: str, file: str) -> str:
    with pytest.raises(TargetError) as caught:
        parse_target(text, file=file)
    message = str(caught.value)
    assert "\n" not in message, "an error is one line"
    return message


@pytest.mark.parametrize("case", MUTATIONS["targets"], ids=lambda case: str(case["name"]))
def test_a_wrong_file_is_refused_with_file_key_and_rule(case: dict[str, str]) -> None:
    message = refusal(changed(case["file"], case["old"], case["new"]), case["file"])
    assert message.startswith(f"{case['file']}: "), message
    assert message.endswith(f"(rule {case['rule']})"), message
    assert case["key"] in message, message


def test_the_files_that_are_changed_above_are_right_as_they_are() -> None:
    for file in (H200, MI300X):
        assert parse_target(text_of(file), file=file).id == Path(file).stem


OWN = 'source = []\nauthority = "own"'


def test_a_small_reference_needs_a_source() -> None:
    third = 'source = ["S00-ACC"]\nauthority = "third-party"'
    small = changed(H200, "reference = 794.5", "reference = 140.0")  # 14 % of 989.4
    assert parse_target(small).expectations("gemm/bf16")[0].reference == 140.0
    message = refusal(small.replace(third, OWN, 1), H200)
    assert "below-limit" in message, message
    large = changed(H200, "reference = 794.5", "reference = 150.0")  # 15.2 %
    assert parse_target(large.replace(third, OWN, 1)).expectations("gemm/bf16")[0].source == ()


def test_a_reference_up_to_115_percent_of_its_limit_is_accepted() -> None:
    inside = changed(H200, "reference = 367.61", "reference = 517.0")  # 450 x 1.15 = 517.5
    assert parse_target(inside).expectations("collectives/all_reduce")[0].reference == 517.0


def test_one_chiplet_alone_has_the_whole_cache() -> None:
    text = re.sub(r"l2_per_chiplet = .*\n", "", text_of(MI300X))
    assert text != text_of(MI300X)
    assert "(rule l2-total)" in refusal(text, MI300X)
    one = re.sub(r"chiplet_count = { value = 8", "chiplet_count = { value = 1", text)
    assert parse_target(one, file=MI300X).value("exec.chiplet_count") == 1
    two = re.sub(r"chiplet_count = { value = 8", "chiplet_count = { value = 2", text)
    assert "(rule l2-total)" in refusal(two, MI300X)


def test_a_product_may_differ_from_its_family_when_it_says_why() -> None:
    fact = (
        '[facts.shared_memory]\nbanks = { value = 64, source = ["L-ISA"], '
        'confidence = "vendor-source", overrides_family = "a board revision" }\n[facts.power]'
    )
    assert parse_target(changed(MI300X, "[facts.power]", fact)).value("shared_memory.banks") == 64


def test_the_warp_size_is_the_familys_even_with_a_reason() -> None:
    fact = (
        '[facts.exec]\nwave_size_default = { value = 32, unit = "threads", source = ["L-ISA"], '
        'confidence = "vendor-source", overrides_family = "no" }\n'
    )
    message = refusal(changed(MI300X, "[facts.exec]\n", fact), MI300X)
    assert "family-contradiction" in message
    assert "facts.exec.wave_size_default" in message


FAILURE = """
[[expected_failures]]
case_id_pattern = "memory/*"
reason = "known"
url = "https://github.com/example/project/issues/1"
expires = 2027-01-31
"""


@pytest.mark.parametrize(
    ("old", "new", "rule", "key"),
    [
        ("https://", "http://", "url", "url"),
        ("2027-01-31", '"2027-01-31"', "type", "expires"),
        ("2027-01-31", "2027-01-31T00:00:00", "type", "expires"),
        ("expires = 2027-01-31", "", "required", "expires"),
        ('reason = "known"', "", "required", "reason"),
    ],
)
def test_an_expected_failure_needs_reason_url_and_expiry(
    old: str, new: str, rule: str, key: str
) -> None:
    assert parse_target(text_of(H200) + FAILURE).expected_failures, "the whole one is accepted"
    message = refusal(text_of(H200) + FAILURE.replace(old, new), H200)
    assert f"expected_failures[0].{key}: " in message
    assert f"(rule {rule})" in message


# the same over a folder: files, families and sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(matrix_dir() / "targets", tmp_path / "targets")
    return tmp_path / "targets"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path.name} no longer has {old!r}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_every_cross_check_has_a_file_that_breaks_it() -> None:
    source = Path(target_rules.__file__).read_text(encoding="utf-8")
    rules = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', source))
    broken = {case["rule"] for case in [*MUTATIONS["targets"], *MUTATIONS["families"]]}
    assert len(rules) >= 15, "the rules were found in the source"
    assert rules <= broken, f"no test breaks {rules - broken}"


def test_a_file_is_named_after_its_target(folder: Path) -> None:
    (folder / "amd-mi300x.toml").rename(folder / "amd-mi301x.toml")
    with pytest.raises(TargetError, match=r"amd-mi301x\.toml: id: .*\(rule id-is-file-name\)"):
        read_folder(folder)
    with pytest.raises(TargetError, match="id-is-file-name"):
        parse_target(folder / "amd-mi301x.toml")


@pytest.mark.parametrize(
    "wrong", ['["74A1"]', '["0x74a1"]', '["744c:c"]', '["74a1"]\npci_source = []']
)
def test_a_pci_id_has_one_form_and_a_source(wrong: str) -> None:
    line = 'pci_ids = ["74a1", "74b5"]\npci_source = ["LIBDRM", "PCI-IDS"]'
    assert "(rule pci-id)" in refusal(changed(MI300X, line, f"pci_ids = {wrong}"), MI300X)


def test_one_device_cannot_be_two_products(folder: Path) -> None:
    twin = (folder / "amd-mi300x.toml").read_text(encoding="utf-8")
    path = folder / "amd-mi300y.toml"
    path.write_text(twin.replace('id = "amd-mi300x"', 'id = "amd-mi300y"'), encoding="utf-8")
    with pytest.raises(TargetError, match=r"amd-mi300y\.toml: match\.names: .*ambiguous-match"):
        read_folder(folder)
    apart = path.read_text(encoding="utf-8").replace("[304, 304]", "[152, 152]")
    path.write_text(apart, encoding="utf-8")
    with pytest.raises(TargetError, match=r"match\.pci_ids: 74a1 is of .*ambiguous-match"):
        read_folder(folder)
    path.write_text(apart.replace('"74a1", "74b5"', '"ffff"'), encoding="utf-8")
    assert "amd-mi300y" in read_folder(folder).targets, "the number of units distinguishes them"


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("portagpu.sources/1", "portagpu.sources/9", "schema"),
        ("retrieved = 2026-11-21", 'retrieved = "today"', "type"),
        ("dated = 2026-06-12", 'dated = "in June"', "type"),
        ('kind = "executed"', "", "required"),
        ("[sources.N-PTXAS]", "[sources.L-LLVM22]", "toml-syntax"),
        ("version =", "versoin =", "unknown-key"),
    ],
)
def test_wrong_sources_are_refused(folder: Path, old: str, new: str, rule: str) -> None:
    edit(folder / "sources.toml", old, new)
    with pytest.raises(TargetError, match=rf"sources\.toml: .*\(rule {rule}\)"):
        read_folder(folder)


def test_a_file_that_is_not_text_is_refused(folder: Path) -> None:
    (folder / "amd-mi300x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match=r"amd-mi300x\.toml: .*\(rule readable\)"):
        read_folder(folder)
    with pytest.raises(TargetError, match=r"absent\.toml: .*\(rule readable\)"):
        parse_target(folder / "absent.toml")


@pytest.mark.parametrize("value", ['[["gemm"]]', "{}", "1979-05-27"])
def test_a_metric_that_is_not_text_is_refused(value: str) -> None:
    message = refusal(changed(H200, 'metric = "gemm/bf16"', f"metric = {value}"), H200)
    assert "expectations[0].metric: must be text" in message


def test_a_misspelt_key_is_named_before_the_one_that_is_missing_then() -> None:
    message = refusal(changed(H200, "family =", "famly ="), H200)
    assert (
        message == f"{H200}: famly: is not a known key; did you mean 'family'? (rule unknown-key)"
    )


def test_an_item_of_a_list_is_named_by_its_place() -> None:
    message = refusal(changed(H200, '"NVIDIA H200 SXM"', '"a\\nb"'), H200)
    assert "match.names[1]: must be one line of printable text" in message


def test_a_line_break_in_a_key_stays_on_one_line() -> None:
    message = refusal(changed(H200, "[match]", '["a\\nb"]\n[match]'), H200)
    assert "(rule unknown-key)" in message


def test_deep_nesting_is_refused_like_any_other_bad_text() -> None:
    assert "toml-syntax" in refusal("a = " + "[" * 20000, "deep.toml")


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" + "0" * 5000, "0x" + "f" * 5000])
@pytest.mark.parametrize("old", ["reference = 794.5", "{ value = 4800,", "unit_count = [132, 132]"])
def test_an_integer_of_any_length_is_refused_in_one_short_line(old: str, number: str) -> None:
    message = refusal(changed(H200, old, re.sub(r"[\d.]+", number, old, count=1)), H200)
    assert message.startswith(f"{H200}: "), message
    assert len(message) < 300, "the number is not written out"


def test_a_reference_far_above_its_limit_is_refused_in_one_short_line() -> None:
    message = refusal(changed(H200, "reference = 794.5", "reference = 1e308"), H200)
    assert "(rule above-limit)" in message
    assert len(message) < 300, "the share of the limit is not written out"
