"""Masks are read as the runtimes and torch read them, and a child sees what it is given."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest

from portagpu.facts import visible
from portagpu.facts.visible import DeviceId, Index, ProblemId, Uuid, VisibilityError
from tests.conftest import ROOT
from tests.support.visibility_rows import CUDA_ROWS, DEVICES, RAISES, ROCM_ROWS, ROWS, Row

VECTORS: Final = ROOT / "tests/vendor_texts/visibility_vectors.json"
NAMES: Final = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
PIECES: Final = (
    "0",
    "1",
    "2",
    "7",
    "8",
    "-1",
    "-0",
    "+3",
    "+",
    "01",
    "0x2",
    " 1",
    "2 ",
    "",
    "x",
    "1gpu",
)
PIECES_OF_UUIDS: Final = (
    "GPU-",
    "GPU-c333",
    "GPU-C3",
    "gpu-b2",
    "GPU-aaaa",
    "MIG-1",
    "GPU-d4,GPU-e",
)
CHARACTERS: Final = "0123456789,-+xXGPUMIabc \t\"'²٣é\x00\n\u2028"


def masks(rng: random.Random, runtime: str) -> dict[str, str]:
    """Some of a runtime's variables, set to lists of what people and tools write, and to noise."""

    def one() -> str:
        if rng.random() < 0.15:
            return "".join(rng.choices(CHARACTERS, k=rng.randint(0, 12)))
        return ",".join(rng.choices(PIECES + PIECES_OF_UUIDS, k=rng.randint(1, 5)))

    return {name: one() for name in NAMES[runtime] if rng.random() < 0.6}


def shown_by(environment: dict[str, str], runtime: str) -> tuple[int, ...]:
    return tuple(each.index for each in visible.resolve(environment, DEVICES, runtime).devices)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_truth_table(row: Row) -> None:
    found = visible.resolve(row.environment, DEVICES, row.runtime)
    assert tuple(each.index for each in found.devices) == row.shows, row.source
    by_torch = RAISES if found.by_torch.error is not None else found.by_torch.count
    assert by_torch == row.torch, f"torch's count ({row.source})"
    assert {problem.id.value for problem in found.problems} == row.problems


@pytest.mark.parametrize("runtime", ["cuda", "rocm"])
def test_a_row_without_problems_is_one_that_torch_and_the_runtime_agree_on(runtime: str) -> None:
    rows = {"cuda": CUDA_ROWS, "rocm": ROCM_ROWS}[runtime]
    quiet = [row for row in rows if not row.problems]
    assert len(quiet) >= 10
    for row in quiet:
        assert row.torch == len(row.shows), row.name


def test_rocm_masks_are_read_as_amds_own_code_reads_them() -> None:
    document = json.loads(VECTORS.read_text(encoding="utf-8"))
    cases = document["cases"]
    assert len(cases) == 400
    for *values, shows in cases:
        environment = {
            name: value
            for name, value in zip(NAMES["rocm"], values, strict=True)
            if value is not None
        }
        assert shown_by(environment, "rocm") == tuple(shows), environment


class TestTorch:
    """torch's own functions, which need neither a GPU nor a driver for this, are the oracle."""

    pytestmark = pytest.mark.torch

    @pytest.fixture
    def ask(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        torch = pytest.importorskip("torch")
        uuids = [str(each.uuid) for each in DEVICES]
        bare = [uuid.removeprefix("GPU-") for uuid in uuids]
        monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: len(uuids))
        monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: uuids)
        monkeypatch.setattr(torch.cuda, "_raw_device_count_amdsmi", lambda: len(bare))
        monkeypatch.setattr(torch.cuda, "_raw_device_uuid_amdsmi", lambda: bare)

        def ask(environment: dict[str, str], runtime: str) -> tuple[object, object, object]:
            """torch's list, its count and its error for an environment."""
            for name in NAMES["rocm"]:
                monkeypatch.delenv(name, raising=False)
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(torch.version, "hip", "7.2" if runtime == "rocm" else None)
            count = {
                "cuda": torch.cuda._device_count_nvml,
                "rocm": torch.cuda._device_count_amdsmi,
            }[runtime]
            try:
                entries = tuple(torch.cuda._parse_visible_devices())
                counted = count()
            except (RuntimeError, ValueError) as error:
                return None, None, str(error)
            # its list where nothing is set, and its answer where it asks the runtime
            return (
                None if entries == tuple(range(64)) else entries,
                None if counted < 0 else counted,
                None,
            )

        return ask

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
    def test_the_table_has_what_torch_says(self, row: Row, ask: Any) -> None:
        _, count, error = ask(row.environment, row.runtime)
        assert (RAISES if error is not None else count) == row.torch

    @pytest.mark.parametrize("runtime", ["cuda", "rocm"])
    def test_torch_is_predicted_for_random_masks(self, runtime: str, ask: Any) -> None:
        rng = random.Random(20)  # noqa: S311 - reproducible, not secret
        seen: dict[str, int] = {"lists": 0, "raised": 0}
        for _ in range(1500):
            environment = {
                name: value.replace("\x00", "") for name, value in masks(rng, runtime).items()
            }
            view = visible.resolve(environment, DEVICES, runtime).by_torch
            found = ask(environment, runtime)
            assert (view.entries, view.count, view.error) == found, environment
            seen["raised" if view.error is not None else "lists"] += 1
        assert min(seen.values()) >= 20, f"the masks are too similar: {seen}"


class TestSlices:
    """MIG: one slice a process, and no other GPU with it (MIG user guide, Device Enumeration)."""

    MACHINE: Final = (
        DeviceId(0, "MIG-c6d4", "GPU-5d5b"),
        DeviceId(0, "MIG-cba6", "GPU-5d5b"),
        DeviceId(1, "GPU-6e6c"),
    )

    @pytest.mark.parametrize(
        ("mask", "shows", "problem"),
        [
            ("MIG-cba6", ("MIG-cba6",), None),
            ("MIG-cb", ("MIG-cba6",), None),
            ("MIG-cba6,MIG-c6d4", ("MIG-cba6",), ProblemId.SLICES),
            ("MIG-c", (), ProblemId.AMBIGUOUS_UUID),
            ("MIG-0", (), ProblemId.UNKNOWN_UUID),
            ("MIG-cba6,GPU-6e6c", ("MIG-cba6",), ProblemId.MIXED_KINDS),
            ("0", ("MIG-c6d4",), ProblemId.SLICE_BY_INDEX),
            ("1", ("GPU-6e6c",), None),
            (None, ("MIG-c6d4",), ProblemId.SLICES),
        ],
    )
    def test_masks(
        self, mask: str | None, shows: tuple[str, ...], problem: ProblemId | None
    ) -> None:
        environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
        found = visible.resolve(environment, self.MACHINE, "cuda")
        assert tuple(each.uuid for each in found.devices) == shows
        reported = {each.id for each in found.problems}
        assert (problem in reported) if problem else not found.harmful, reported

    def test_torch_asks_the_runtime(self) -> None:
        found = visible.resolve({"CUDA_VISIBLE_DEVICES": "MIG-cba6"}, self.MACHINE, "cuda")
        assert found.by_torch.count is None

    def test_a_child_is_given_a_slice_by_its_uuid(self) -> None:
        changes = visible.environment_for([self.MACHINE[1]], "cuda")
        assert changes == {"CUDA_VISIBLE_DEVICES": "MIG-cba6"}

    @pytest.mark.parametrize("chosen", [(0, 1), (0, 2)])
    def test_more_than_one_is_refused(self, chosen: tuple[int, ...]) -> None:
        with pytest.raises(VisibilityError, match="start a process for each"):
            visible.environment_for([self.MACHINE[at] for at in chosen], "cuda")

    def test_partitions_that_share_a_uuid_have_to_be_counted(self) -> None:
        # KFD gives the eight partitions of an MI300X in CPX mode one unique_id
        partitions = [DeviceId(index, "GPU-224f5c1a3b7d9e10") for index in range(8)]
        mask = {"ROCR_VISIBLE_DEVICES": "GPU-224f5c1a3b7d9e10"}
        found = visible.resolve(mask, partitions, "rocm")
        assert found.devices == ()
        assert ProblemId.AMBIGUOUS_UUID in {each.id for each in found.problems}
        changes = visible.environment_for(partitions[3:5], "rocm")
        assert changes["HIP_VISIBLE_DEVICES"] == "3,4"


def applied(base: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**base, **changes}.items() if value is not None}


@pytest.mark.parametrize("runtime", ["cuda", "rocm"])
def test_a_child_sees_what_it_is_given_and_torch_agrees(runtime: str) -> None:
    rng = random.Random(3)  # noqa: S311 - reproducible, not secret
    for _ in range(300):
        wanted = tuple(rng.sample(DEVICES, rng.randint(0, 8)))
        changes = visible.environment_for(wanted, runtime)
        # whatever was inherited next to it
        found = visible.resolve(applied(masks(rng, runtime), changes), DEVICES, runtime)
        assert found.devices == wanted
        assert found.by_torch.count == len(wanted)
        assert not found.problems


@pytest.mark.parametrize("runtime", ["cuda", "rocm"])
def test_a_child_of_a_masked_process_sees_what_it_is_given(runtime: str) -> None:
    rng = random.Random(4)  # noqa: S311 - reproducible, not secret
    given = 0
    for _ in range(600):
        base = masks(rng, runtime)
        outer = visible.resolve(base, DEVICES, runtime).devices
        wanted = tuple(rng.sample(outer, rng.randint(0, len(outer))))
        inner = applied(base, visible.environment_for(wanted, runtime, base))
        assert visible.resolve(inner, DEVICES, runtime).devices == wanted, base
        deeper = wanted[:1]
        twice = applied(inner, visible.environment_for(deeper, runtime, inner))
        assert visible.resolve(twice, DEVICES, runtime).devices == deeper, base
        given += bool(wanted)
    assert given >= 50, "the masks hide nearly everything"


@pytest.mark.parametrize(
    ("runtime", "base"),
    [
        ("cuda", {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-c"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "2,3"}),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "5,3", "HIP_VISIBLE_DEVICES": "1"}),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "GPU-e,GPU-c", "CUDA_VISIBLE_DEVICES": "1"}),
        ("rocm", {"HIP_VISIBLE_DEVICES": "-1"}),
    ],
)
def test_a_device_that_the_parent_must_not_use_is_refused(
    runtime: str, base: dict[str, str]
) -> None:
    with pytest.raises(VisibilityError, match=r"device 5 is hidden from this process by \w+='"):
        visible.environment_for([DEVICES[5]], runtime, base)


def test_one_variable_is_set_and_the_others_are_unset() -> None:
    assert visible.environment_for([DEVICES[3], DEVICES[1]], "rocm") == {
        "ROCR_VISIBLE_DEVICES": None,
        "HIP_VISIBLE_DEVICES": "3,1",
        "CUDA_VISIBLE_DEVICES": None,
        "GPU_DEVICE_ORDINAL": None,
    }
    assert visible.environment_for([DEVICES[3]], "cuda") == {"CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize("runtime", ["cuda", "rocm"])
def test_no_device_is_minus_one_and_not_an_empty_value(runtime: str) -> None:
    assert "-1" in visible.environment_for([], runtime).values()


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([DeviceId(-1)], "negative"),
        ([DeviceId(1), DeviceId(1, "GPU-a")], "given twice"),
        ([DeviceId(1, None, "GPU-a")], "no UUID of its own"),
        ([DeviceId(1, "MIG-a", "GPU-a"), DeviceId(1, "MIG-a", "GPU-a")], "no UUID of its own"),
    ],
)
def test_devices_that_cannot_be_distinguished_are_refused(
    devices: list[DeviceId], words: str
) -> None:
    with pytest.raises(VisibilityError, match=words):
        visible.environment_for(devices, "cuda")
    with pytest.raises(VisibilityError, match=words):
        visible.resolve({}, devices, "cuda")


@pytest.mark.parametrize(
    "call",
    [
        lambda: visible.diagnose({}, "xpu"),
        lambda: visible.resolve({}, (), "xpu"),
        lambda: visible.environment_for((), "xpu"),
    ],
)
def test_an_unknown_runtime_is_one_line(call: Any) -> None:
    with pytest.raises(VisibilityError, match="no runtime is called 'xpu': choose one of cuda, ro"):
        call()


@pytest.mark.parametrize(("layer", "entry"), [("CUDA", "{}gpu"), ("ROCr", "{:#x}"), ("HIP", "3")])
def test_the_mask_is_written_out_once_however_many_entries_are_wrong(
    layer: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def count(text: str) -> str:
        written.append(text)
        return "..."

    monkeypatch.setattr("portagpu.facts.visible.mask.quoted", count)
    text = ",".join(entry.format(number) for number in range(3_000))
    assert visible.parse(text, visible.RULES[layer]).problems
    assert written.count(text) == 1, "the time grows with the square of the mask's length"


def test_what_is_reported_without_devices_is_reported_with_them() -> None:
    for row in ROWS:
        found = {problem.id for problem in visible.diagnose(row.environment, row.runtime)}
        # with the devices, a number can turn out to be one that neither reader reaches
        found -= {ProblemId.TORCH_DISAGREES}
        assert {each.value for each in found} <= row.problems, row.name


def test_a_launcher_that_sets_both_vendors_masks_is_diagnosed_without_a_device() -> None:
    masks_of_slurm = {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert visible.diagnose(masks_of_slurm, "cuda") == ()
    messages = [each.message for each in visible.diagnose(masks_of_slurm, "rocm")]
    assert messages[0] == (
        "ROCR_VISIBLE_DEVICES='2,3' leaves 2 device(s), numbered from 0, and "
        "CUDA_VISIBLE_DEVICES='2,3' then asks for 2, which hides it and all after it: set "
        "HIP_VISIBLE_DEVICES alone"
    )


def test_parse_gives_typed_entries() -> None:
    rules = visible.RULES["ROCr"]
    assert visible.parse("1, GPU-ab ,-1", rules).entries == (Index(1), Uuid("GPU-ab"))
    assert visible.parse(None, rules).entries is None, "not set hides nothing"
    assert visible.parse("", rules).entries == ()


@pytest.mark.parametrize(
    ("build", "vendors", "runtimes"),
    [
        ("cuda", (), ("cuda",)),
        ("cpu", ("amd",), ("rocm",)),
        (None, ("amd", "nvidia"), ("cuda", "rocm")),
        ("cpu", (), ()),
    ],
)
def test_the_runtimes_of_a_machine(
    build: str | None, vendors: tuple[str, ...], runtimes: tuple[str, ...]
) -> None:
    assert visible.relevant_runtimes(build, vendors) == runtimes
