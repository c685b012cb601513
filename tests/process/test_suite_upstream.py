"""Tests that PyTorch's own test classes make for types of devices, run as cases.

The file is ours; its form is that of PyTorch's test folder (instantiate_device_type_tests).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

from portagpu.suites.conformance.options import SelectionError
from portagpu.suites.conformance.upstream import expected_failures, files_with_tests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

LIKE_UPSTREAM = """
import os
import unittest

import torch
from torch.testing._internal.common_device_type import (
    dtypes, instantiate_device_type_tests, onlyCUDA
)
from torch.testing._internal.common_utils import TestCase, run_tests


class TestAdding(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).sum().item(), 3)

    def test_wrong(self, device):
        self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))

    def test_known(self, device):
        raise RuntimeError("not implemented here")

    def test_ends_its_process(self, device):
        os._exit(3)

    @onlyCUDA
    def test_of_a_gpu(self, device):
        pass

    @unittest.expectedFailure
    def test_fails_as_torch_has_it(self, device):
        self.assertEqual(1, 2)


class TestOfNoDevice(TestCase):
    def test_nothing(self):
        raise AssertionError("it is about no device")


instantiate_device_type_tests(TestAdding, globals())

if __name__ == "__main__":
    run_tests()
"""
EXPECTED = """
schema = "portagpu.expected/1"

[[expected_failures]]
case_id_pattern = "upstream/test_like/*/test_known_*"
reason = "it is not written yet"
url = "https://example.org/1"
expires = 2999-01-01
"""
CLASS = "upstream/test_like/TestAddingCPU"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like PyTorch's test folder, with one file."""
    made = tmp_path / "pytorch" / "test"
    made.mkdir(parents=True)
    (made / "test_like.py").write_text(LIKE_UPSTREAM)
    return made


@pytest.mark.processes(10, "a child that a test ends is started again")
def test_upstream_tests_are_cases_of_one_run(
    child: Callable[..., Child], folder: Path, tmp_path: Path
) -> None:
    expected = tmp_path / "expected.toml"
    expected.write_text(EXPECTED)
    words = ("-m", "portagpu", "conform", "--backend", "cpu", "--upstream", str(folder))
    ended = child(*words, "--expected", str(expected), "--json", "-", limit_s=400)
    assert ended.out.startswith("{"), ended.err
    found: dict[str, Any] = {each["id"]: each for each in json.loads(ended.out)["results"]}
    assert {name: each["verdict"] for name, each in found.items()} == {
        f"{CLASS}/test_sum_cpu_float32": "PASS",
        f"{CLASS}/test_sum_cpu_int64": "PASS",
        f"{CLASS}/test_wrong_cpu": "FAIL",
        f"{CLASS}/test_known_cpu": "SKIP",
        f"{CLASS}/test_ends_its_process_cpu": "ERROR",
        f"{CLASS}/test_of_a_gpu_cpu": "SKIP",
        f"{CLASS}/test_fails_as_torch_has_it_cpu": "SKIP",
    }
    reasons = {name.rpartition("/")[2]: each["reason"] for name, each in found.items()}
    assert "not close" in reasons["test_wrong_cpu"] or "not equal" in reasons["test_wrong_cpu"]
    assert "it is not written yet, https://example.org/1" in reasons["test_known_cpu"]
    assert reasons["test_of_a_gpu_cpu"].startswith("torch skips it: Only runs on")
    assert reasons["test_fails_as_torch_has_it_cpu"].startswith("torch expects it to fail")
    assert {each["suite"] for each in found.values()} == {"upstream"}
    assert found[f"{CLASS}/test_sum_cpu_int64"]["evidence"] == ["executed"]
    assert ended.code == 1


def test_the_version_of_the_checkout_is_that_of_torch(folder: Path) -> None:
    (folder.parent / "version.txt").write_text("1.5.0a0\n")
    with pytest.raises(SelectionError, match=r"is of torch 1\.5, and .* check out the tag v2"):
        files_with_tests(folder)


def test_only_the_named_files_are_read(folder: Path) -> None:
    (folder / "test_other.py").write_text("raise ValueError\n")
    assert [each.name for each in files_with_tests(folder)] == ["test_like.py", "test_other.py"]
    for name in ("upstream/test_like/*", CLASS, "upstream/*like"):
        assert [each.name for each in files_with_tests(folder, (name,))] == ["test_like.py"]
    # files that are known to be of types of devices leave out the others
    (folder / "test_view_ops.py").write_text("")
    assert [each.name for each in files_with_tests(folder, ("upstream",))] == ["test_view_ops.py"]


def test_a_folder_without_tests_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match=r"has no test_\*\.py: name the folder test of a"):
        files_with_tests(tmp_path)


def test_a_wrong_file_of_expected_failures_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"
    file.write_text(EXPECTED.replace("https://example.org/1", "somewhere"))
    with pytest.raises(SelectionError, match=r"expected_failures\[0\]\.url: must be an https"):
        expected_failures(file)
