"""What a kernel does by its name: rules as data, in both vendors' words."""

from __future__ import annotations

import csv
import hashlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.documents import DocumentError
from portagpu.facts.vendors import problems
from portagpu.traces.analysis import kernel_names
from portagpu.traces.analysis.kernel_names import (
    CATEGORIES,
    Classification,
    classify,
    function_of,
    read_rules,
    readable,
    rules,
)
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CORPUS: Final = ROOT / "tests/vendor_texts/kernel_names_corpus.tsv"
SOURCES: Final = ROOT / "tests/vendor_texts/kernel_names_sources.tsv"
"""Names of functions in the source code of two libraries, without their namespaces."""
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, "
    "float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)"
)


@pytest.mark.parametrize(
    ("name", "category", "library"),
    [
        # names that other tools put elsewhere: "reduce" and "sum" before the collective
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclArgs)", "communication", "NCCL"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "communication", "RCCL"),
        ("void rcclGenericKernel<1, true>(ncclDevComm*)", "communication", "RCCL"),
        ("void vllm::cross_device_reduce_1stage<float, 8>(x)", "communication", "vLLM"),
        ("void quickreduce::allreduce_prototype_twoshot<a>(x)", "communication", "vLLM"),
        ("multimem_all_reduce_kernel", "communication", "torch"),
        ("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", "gemm", "cuBLAS"),
        (
            "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelIiEEJEEEvDpT_",
            "attention",
            "Composable Kernel",
        ),
        ("triton_poi_fused_add_mul_0", "generated", "inductor"),
        ("__amd_rocclr_fillBufferAligned.kd", "copy", "HIP runtime"),
        ("hipMemcpyAsync", "copy", "HIP runtime"),
        ("Memcpy DtoH (Device -> Pinned)", "copy", ""),
        (MEAN, "reduction", "torch"),
        ("_ZN2at6native13reduce_kernelILi512ELi1EiEEvT1_", "reduction", "torch"),
        ("reduce_kernel", "reduction", "torch"),
    ],
)
def test_names_have_their_category(name: str, category: str, library: str) -> None:
    found = classify(name)
    assert (found.category, found.library) == (category, library), found
    assert found.rule


def test_what_no_rule_knows_is_unknown_and_names_no_rule() -> None:
    assert classify("Zq7") == Classification("unknown", "", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("foo.kd", "foo"),
        ("vecCopy(double*) [clone .kd]", "vecCopy(double*)"),
        ("vecCopy(double*) (.kd)", "vecCopy(double*)"),
        ("void <unnamed>::softmax<float>(T2 *)", "void softmax<float>(T2 *)"),
        ("_ZN2at6native4thatIfLi512ELb1EEEvT_", "at::native::that<>"),
        ("_ZN12_GLOBAL__N_17softmaxIfEEvT_", "softmax<>"),
        # the number of an enumeration is not an identifier's length
        ("_Z3fooILN2ns4EnumE3E3barEvT_", "foo<ns::Enum,bar>"),
        # cut off within an identifier, and lengths beyond any text
        ("_ZN2at6native13reduce", "at::native::reduce"),
        ("_ZN999999999a", "a"),
    ],
)
def test_names_are_read_without_the_marks_of_tools(name: str, words: str) -> None:
    assert readable(name) == words


@pytest.mark.parametrize(
    ("text", "function"),
    [
        (MEAN, "at::native::reduce_kernel"),
        ("std::enable_if<(bool)1, void>::type a::b<c(d)>(e)", "a::b"),
        ("Memcpy HtoD (Host -> Device)", "Memcpy HtoD (Host -> Device)"),
        ("a", "a"),
        ("", ""),
        ("(", "("),
        ("a<b", "a"),
    ],
)
def test_the_function_of_a_name_has_neither_result_nor_arguments(text: str, function: str) -> None:
    assert function_of(text) == function


def test_rules_are_in_the_order_of_the_categories_and_none_is_left_out() -> None:
    order = [CATEGORIES.index(rule.category) for rule in rules()]
    assert order == sorted(order)
    assert not [each for each in problems() if kernel_names.TABLE in each]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"category": "gemm", "pattern": "a"}, r"rule\[0\].id: is missing"),
        (
            {"id": "a", "category": "other", "pattern": "a"},
            "category: must be one of",
        ),
        (
            {"id": "a", "category": "gemm", "pattern": "("},
            "pattern: is not a reg",
        ),
        (
            {"id": "a", "category": "gemm", "pattern": "a", "of": "text"},
            "of: must be one of f",
        ),
        (
            {"id": "a", "category": "gemm", "pattern": "a", "when": "b"},
            "when: is not a known",
        ),
    ],
)
def test_a_wrong_rule_is_named(rule: dict[str, str], words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        read_rules({"rule": [rule]})
    twice = {"id": "a", "category": "gemm", "pattern": "a"}
    with pytest.raises(DocumentError, match="rule: two rules are called 'a'"):
        read_rules({"rule": [twice, twice]})


def test_no_two_rules_have_one_id() -> None:
    ids = Counter(rule.id for rule in rules())
    assert not [name for name, number in ids.items() if number > 1]


def test_nothing_of_a_broken_table_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"id": "acme-gemm", "category": "gemm", "pattern": "acme"}
    broken = {"rule": [good, {**good, "id": "acme-other", "category": "other"}]}
    left_out: list[str] = []
    monkeypatch.setattr(kernel_names, "tables", lambda _: {"acme": broken})
    monkeypatch.setattr(kernel_names, "leave_out_table", lambda vendor, *_: left_out.append(vendor))
    found = kernel_names.rules.__wrapped__()
    assert left_out == ["acme"]
    assert "acme-gemm" not in {rule.id for rule in found}
    assert "inductor" in {rule.id for rule in found}


def _corpus(path: Path = CORPUS) -> list[dict[str, str]]:
    """Names that were seen in traces and sources, labelled from what the kernels do."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _is_held_out(name: str) -> bool:
    """Whether a name is of the half that nobody looked at when the rules were written."""
    return bool(hashlib.sha256(name.encode()).digest()[0] & 1)


def test_the_corpus_has_names_of_both_vendors_and_every_category() -> None:
    rows = _corpus()
    assert len({row["name"] for row in rows}) == len(rows) >= 400
    assert {row["category"] for row in rows} == set(CATEGORIES)
    assert all(row["source"] for row in rows)
    libraries = Counter(row["library"] for row in rows)
    assert min(libraries[name] for name in ("Tensile", "MIOpen", "cuBLAS", "cuDNN")) >= 10


@pytest.mark.parametrize("held_out", [False, True])
def test_few_names_are_in_another_category_than_they_belong_to(held_out: bool) -> None:
    """Measured once at 95 % of the names that the rules were not written for: docs/profiling.md."""
    rows = [row for row in _corpus() if _is_held_out(row["name"]) is held_out]
    wrong = [row for row in rows if classify(row["name"]).category != row["category"]]
    assert 1 - len(wrong) / len(rows) >= 0.95, [row["name"][:80] for row in wrong]
    labelled = [row for row in rows if row["library"]]
    same = [row for row in labelled if classify(row["name"]).library == row["library"]]
    assert len(same) / len(labelled) >= 0.93


@pytest.mark.parametrize(("used_for", "floor"), [("rules", 0.95), ("measure", 0.88)])
def test_names_that_say_little_are_mostly_right(used_for: str, floor: float) -> None:
    rows = [row for row in _corpus(SOURCES) if row["used_for"] == used_for]
    assert len(rows) > 80
    right = [row for row in rows if classify(row["name"]).category == row["category"]]
    assert len(right) / len(rows) >= floor


def test_any_text_has_a_category() -> None:
    chance = random.Random(5)  # noqa: S311 - texts for a test
    for _ in range(3000):
        name = "".join(chance.choices("_ZNIELSUT0123456789abK<>(){}[] :.", k=chance.randrange(80)))
        for text in (name, f"_Z{name}"):
            assert classify(text).category in CATEGORIES
