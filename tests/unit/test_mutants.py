"""The tests that a fault meets: what a report calls them, and which files are near."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.support.mutants import Mutant, _node_id, nearest_tests


@pytest.mark.parametrize(
    ("classname", "name", "node"),
    [
        ("tests.unit.base.test_text", "test_a[1.5]", "tests/unit/base/test_text.py::test_a[1.5]"),
        ("tests.torch.test_visible.TestTorch", "test_b",
         "tests/torch/test_visible.py::TestTorch::test_b"),
        # a file that could not be collected
        ("", "tests.torch.test_visible", "tests/torch/test_visible.py"),
    ],
)  # fmt: skip
def test_a_test_of_a_report_is_named_as_the_command_line_does(
    classname: str, name: str, node: str
) -> None:
    assert _node_id(ElementTree.Element("testcase", classname=classname, name=name)) == node


@pytest.mark.parametrize(
    ("file", "nearest"),
    [
        # of a room's folder
        ("portagpu/base/documents.py", {"test_documents.py"}),
        ("portagpu/runs/ledger/balance.py", {"test_ledger.py"}),
        ("portagpu/train/kernels/cpp/run.py", {"test_kernels_cpp.py", "test_kernels_cpp_shim.py",
                                               "test_kernels_cpp_compile.py"}),
        ("portagpu/suites/search/operators/pair.py", {"test_search_operators.py"}),
    ],
)  # fmt: skip
def test_the_nearest_files_share_the_most_words(file: str, nearest: set[str]) -> None:
    found = nearest_tests(file, ("unit", "process", "ranks"), 4)
    assert {each.rpartition("/")[2] for each in found} >= nearest
    assert len(found) <= 4


def test_of_files_that_are_as_near_one_that_uses_the_part_is_nearest() -> None:
    found = nearest_tests("portagpu/devices/discovery.py", ("unit",), 1, ["probes"])
    assert found == ["tests/unit/devices/test_registry_probes.py"]


def test_a_mutant_knows_the_parts_that_it_is_in() -> None:
    before = "class A:\n    def f(self):\n        if self:\n            return 1\n"
    assert Mutant("a.py", "", before, before.replace("1", "2")).names == ["A", "f"]
    assert Mutant("a.py", "", before, before.replace("A", "B")).names == ["A"]
