"""GPUs that sources name and a list of what their driver serves lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.facts.readings import Findings, Reading
from portagpu.machine.inventory.join import join
from portagpu.machine.inventory.kernel import KIND as PCI
from portagpu.machine.inventory.sources import Live
from tests.support.looped import looped

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.machine.inventory.gpu import Unlisted

A, B, C = "0000:05:00.0", "0000:c6:00.0", "0000:e1:00.0"
H100, OTHER = 0x2330, 0x1381


def says(source: str, *readings: dict[str, Any], complete: bool | None = None) -> Findings:
    made = tuple(Reading(source=source, **{"vendor": "nvidia", **each}) for each in readings)
    return Findings(kind=source, readings=made, complete=complete)


def on_pci(*addresses: str, **values: Any) -> Findings:
    return says(PCI, *({"pci": pci, "device_id": H100, **values} for pci in addresses))


def served(*addresses: str, complete: bool | None = True, source: str = "nvml") -> Findings:
    return says(source, *({"pci": pci} for pci in addresses), complete=complete)


def one_missing(*findings: Findings) -> Unlisted:
    (found,) = join(findings).unlisted
    return found


def test_a_gpu_that_pci_has_and_the_driver_does_not_serve_is_missing() -> None:
    found = one_missing(served(A, B), on_pci(A, B, C))
    assert found.gpu is not None
    assert (found.gpu.pci, found.missing_in, found.sources) == (C, "nvml", (PCI,))
    assert not found.doubt
    assert not found.excuse


def test_whatever_the_driver_serves_is_not_missing() -> None:
    assert join([served(A, B), on_pci(A, B)]).unlisted == ()
    assert join([served(A, B), on_pci(A)]).unlisted == ()
    assert join([served(A, B, complete=None), on_pci(A, B, C)]).unlisted == ()
    assert join([on_pci(A, B, C)]).unlisted == ()


@looped(
    "pci, values, complete",
    [
        # a display adapter of another product
        (C, {"device_id": OTHER}, True),
        (C, {"driver": "nouveau"}, True),
        # on the bus of another GPU
        ("0000:c6:01.0", {}, True),
        (C, {}, False),
    ],
)
def test_what_may_be_missing_without_a_fault_is_doubted(
    pci: str, values: dict[str, Any], complete: bool
) -> None:
    devices = on_pci(pci, **values)
    found = one_missing(served(A, B, complete=complete), on_pci(A, B), devices)
    assert found.doubt
    assert not found.excuse


@looped(
    "pci, values",
    [
        (C, {"driver": "vfio-pci"}),
        (C, {"driver": "nvgrace_gpu_vfio_pci"}),
        (C, {"driver": "pci-stub"}),
        ("0000:c6:00.4", {}),
    ],
)
def test_a_guests_gpu_and_a_virtual_function_are_excused(pci: str, values: dict[str, Any]) -> None:
    found = one_missing(served(A, B), on_pci(A, B), on_pci(pci, **values))
    assert found.excuse
    assert not found.doubt


def test_of_two_lists_of_one_tool_neither_proves_a_loss() -> None:
    lists = (served(A, B, source="nvidia-smi"), served(A, source="nvidia-smi"))
    assert one_missing(*lists).doubt


def test_a_list_without_addresses_lacks_a_number_of_gpus() -> None:
    by_uuid = says("nvidia-smi -L", {"uuid": "GPU-a"}, {"uuid": "GPU-b"}, complete=True)
    found = one_missing(by_uuid, on_pci(A, B, C))
    assert (found.gpu, found.count, found.doubt) == (None, 1, "")
    whole = join([by_uuid, on_pci(A, B)])
    assert (whole.unlisted, whole.unpaired) == ((), 2)


def test_a_thousand_gpus_are_held_against_their_lists() -> None:
    addresses = [f"{n >> 8:04x}:{n & 255:02x}:00.0" for n in range(1024)]
    found = join(
        [served(*addresses[:512]), served(*addresses[:700], source="b"), on_pci(*addresses)]
    )
    certain = [each.gpu.pci for each in found.unlisted if each.gpu is not None and not each.doubt]
    assert sorted(certain) == sorted(set(addresses[512:]))


class _Machine(Live):
    """A machine with these findings and the files below ``root``."""

    def __init__(self, root: Path, *findings: Findings) -> None:
        super().__init__(root, {})
        self._own = findings

    def findings(self) -> tuple[Findings, ...]:
        return self._own


@looped(
    "file, text",
    [
        (".dockerenv", ""),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n"),
        ("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n"),
    ],
)
def test_in_a_container_or_a_job_the_driver_serves_a_part(
    file: str, text: str, tmp_path: Path
) -> None:
    findings = (served(A), on_pci(A, B))
    assert len(_Machine(tmp_path, *findings).inventory().unlisted) == 1
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert _Machine(tmp_path, *findings).inventory().unlisted == ()
