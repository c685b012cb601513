"""Every verb in an untrusted folder, each as a process of its own: nothing of it is executed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.test_hostile_folders import stranger as stranger
from tests.support.forked_verbs import VERB
from tests.support.planted import VERBS, WITH_GPUS, marks, modules_of_a_start, plant, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_no_verb_executes_what_lies_in_the_working_folder(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    stranger = tmp_path / "stranger"
    plant(stranger, tmp_path / "marks")
    path = f".::{os.environ['PATH']}:."
    for start in (("-P", "-m", "portagpu"), ("-P", "-c", WITH_GPUS)):
        ended = run(stranger, *start, *words, PATH=path, CUDA_HOME=".", ROCM_PATH=".")
        assert ended.code in (0, 1, 2, 3), ended.err
        assert not {"unexpected", "Traceback"} & {*ended.err.split()}, ended.err
        assert marks(stranger) == [], f"{words} executed what lies in the working folder"


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    return modules_of_a_start(tmp_path_factory.mktemp("starting"))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_python_m_portagpu_leaves_the_working_folder_out(
    tmp_path: Path, starting: frozenset[str], words: tuple[str, ...]
) -> None:
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks", without=starting)
    ended = run(folder, "-m", "portagpu", *words)
    assert ended.code in (0, 1, 2, 3), ended.err
    assert marks(folder) == [], f"{words} executed what lies in the working folder"


@pytest.mark.parametrize("words", VERBS[-1:], ids=" ".join)
def test_no_folder_for_temporary_files_is_one_clear_line(
    tmp_path: Path, verbs: ForkedVerbs, words: tuple[str, ...]
) -> None:
    words = tuple(str(tmp_path / "out") if word == "OUT" else word for word in words)
    nowhere = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc/none']\n"
    ended = verbs(*words, body=f"{nowhere}{VERB}")
    said = ended.err.splitlines()
    assert len(said) <= 1, said
    assert "unexpected" not in ended.err
    if words[0] in ("conform", "compile"):
        assert ended.code == 1
        assert said[0].startswith("portagpu: there is no folder for temporary files")
        assert said[0].endswith("set TMPDIR to one that is writable")


@pytest.mark.parametrize(
    "start", ["-m portagpu.reports.bundles", "-mportagpu.facts.targets", "-Wi -m portagpu"]
)
def test_every_module_of_the_package_does(
    tmp_path: Path, starting: frozenset[str], start: str
) -> None:
    folder = tmp_path / "stranger"
    plant(folder, tmp_path / "marks", without=starting)
    run(folder, *start.split(), "info")
    assert marks(folder) == []
