"""What launchers say of a rank: every set of variables, whole, broken and contradicting."""

from __future__ import annotations

from typing import Any

import pytest

from portagpu.base.errors import CollectiveError
from portagpu.devices.collectives.launcher import Place, first_host, local_rank, place_of_rank

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "4567",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "run7",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "gpu[03-04,7]",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}


def short(place: Place) -> tuple[Any, ...]:
    return (
        place.launcher,
        (place.rank, place.world_size),
        (place.local_rank, place.local_world_size),
        place.address,
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("alone", (0, 1), (0, 1), None)),
        (TORCHRUN, ("torchrun", (5, 8), (1, 4), "node1")),
        (SLURM, ("Slurm", (5, 8), (1, None), "gpu03")),
        (SLURM | {"MASTER_ADDR": "other"}, ("Slurm", (5, 8), (1, None), "other")),
        # of a step, not of the job
        (
            SLURM | {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NODELIST": "gpu04"},
            ("Slurm", (5, 6), (1, None), "gpu04"),
        ),
        (OPEN_MPI, ("Open MPI", (1, 2), (1, 2), "127.0.0.1")),
        (
            {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"},
            ("MVAPICH", (0, 2), (None, None), None),
        ),
        (PMI, ("MPI", (1, 2), (0, 1), None)),
        # torchrun inside a job of Slurm, and mpirun inside it: the inner one counts
        (TORCHRUN | SLURM | {"SLURM_PROCID": "0"}, ("torchrun", (5, 8), (1, 4), "node1")),
        (SLURM | OPEN_MPI | {"SLURM_PROCID": "0"}, ("Open MPI", (1, 2), (1, 2), "127.0.0.1")),
        # RANK and WORLD_SIZE set by hand in a step: the rest is Slurm's
        ({"RANK": "5", "WORLD_SIZE": "8"} | SLURM, ("torchrun", (5, 8), (1, None), "gpu03")),
        # a batch script has a rank and no size
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, ("alone", (0, 1), (0, 1), None)),
        ({"PMI_RANK": "1"}, ("alone", (0, 1), (0, 1), None)),
        ({"RANK": "", "WORLD_SIZE": ""}, ("alone", (0, 1), (0, 1), None)),
    ],
)
def test_a_place_is_what_the_innermost_launcher_says(
    environment: dict[str, str], expected: tuple[Any, ...]
) -> None:
    assert short(place_of_rank(environment)) == expected


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE is not: set both, or neither"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not: set both, or neither"),
        ({"RANK": "0"} | SLURM, "RANK is set and WORLD_SIZE is not"),
        (TORCHRUN | {"RANK": "8"}, "RANK is 8 and WORLD_SIZE is 8: ranks are numbered from 0 to 7"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "RANK is 5 and WORLD_SIZE is 0: no ranks"),
        (TORCHRUN | {"RANK": "x"}, "RANK is a number from 0, not 'x'"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is a number from 0, not '-1'"),
        (TORCHRUN | {"RANK": "٣"}, "RANK is a number from 0"),
        (TORCHRUN | {"LOCAL_RANK": "1.5"}, "LOCAL_RANK is a number from 0, not '1.5'"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is a port from 1 to 65535, not 0"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT is a port"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT is a number from 0, not 'http'"),
        (SLURM | {"SLURM_NTASKS": "5"}, "SLURM_PROCID is 5 and SLURM_NTASKS is 5"),
        (SLURM | {"SLURM_JOB_NODELIST": "gpu["}, "SLURM_JOB_NODELIST cannot be read"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE is a number from 0"),
    ],
)
def test_broken_variables_are_one_line(environment: dict[str, str], said: str) -> None:
    with pytest.raises(CollectiveError) as caught:
        place_of_rank(environment)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_count_before_variables() -> None:
    place = place_of_rank(TORCHRUN, 5, 8)
    assert short(place) == ("arguments", (5, 8), (1, 4), "node1")
    assert not place.agent_holds_store
    # a launcher that disagrees says nothing of this rank's number on its machine
    assert short(place_of_rank(TORCHRUN, 0, 2)) == ("arguments", (0, 2), (None, None), "node1")
    assert short(place_of_rank({"RANK": "x"}, 0, 2))[1] == (0, 2)
    assert short(place_of_rank(TORCHRUN, rank=6))[1] == (6, 8)
    with pytest.raises(ValueError, match="numbered from 0 to 4"):
        place_of_rank(TORCHRUN, world_size=5)


def test_ports_agree_within_a_job_and_differ_between_jobs() -> None:
    def port(**changes: str) -> int:
        return place_of_rank(SLURM | changes).port

    assert port() == port(SLURM_PROCID="0", SLURM_LOCALID="0")
    others = {port(SLURM_JOB_ID=str(123457 + number)) for number in range(20)}
    assert len(others) > 15
    assert port() != port(SLURM_STEP_ID="1"), "two steps of a job share a port"
    assert all(20000 <= each < 29500 for each in {*others, port()})
    assert port(MASTER_PORT="1234") == 1234
    assert place_of_rank(PMI).port == 29500
    # mpirun starts a step of Slurm on each machine
    inside = [OPEN_MPI | {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": step} for step in "01"]
    assert len({place_of_rank(each).port for each in inside}) == 1


def test_the_store_of_torchrun_is_its_agent_s() -> None:
    assert place_of_rank(TORCHRUN).agent_holds_store
    assert not place_of_rank(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_holds_store
    assert not place_of_rank(SLURM | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).agent_holds_store


def test_a_batch_script_of_slurm_says_to_use_srun() -> None:
    script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    assert "srun" in place_of_rank(script).hint
    assert place_of_rank(SLURM).hint == ""


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("node07", "node07"),
        ("a,b", "a"),
        ("node[07-09,12]-ib,login1", "node07-ib"),
        ("rack[1-2]node[03,5-7]", "rack1node03"),
        ("n-[001-100].cluster.example", "n-001.cluster.example"),
    ],
)
def test_the_first_host_of_a_list_of_slurm(node_list: str, host: str) -> None:
    assert first_host(node_list) == host


@pytest.mark.parametrize("text", ["", ",a", "a b", "a[", "a]", "[]", "a[[1]]", "$(x)", "a\nb"])
def test_what_is_not_a_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of hosts"):
        first_host(text)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, (1, 4)),
        (SLURM, (1, None)),
        (PMI, (0, 1)),
        ({"LOCAL_RANK": "1"}, None),
        (TORCHRUN | {"RANK": "x"}, None),
        (TORCHRUN | {"LOCAL_RANK": "4"}, None),
        ({"RANK": "5", "WORLD_SIZE": "8"} | SLURM, (1, None)),
    ],
)
def test_the_number_on_this_machine_never_raises(
    environment: dict[str, str], expected: tuple[int, int | None] | None
) -> None:
    assert local_rank(environment) == expected
