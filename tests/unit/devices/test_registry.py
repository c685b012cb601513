"""Which backend is chosen, and what is said when none can be."""

from __future__ import annotations

import logging
import threading

import pytest

from portagpu.base.errors import BackendNotFound, MissingDependency
from portagpu.devices import functions, registry
from tests.support.fake_plugins import FakeBackend, FakePlugin
from tests.support.registry_state import forget, machine, use_plugins


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    forget(monkeypatch)


def cpu_plugin() -> FakePlugin:
    return FakePlugin("cpu", count=1, reason="torch runs on the CPU")


def gpu_plugin(name: str = "cuda", **status) -> FakePlugin:
    return FakePlugin(name, **{"automatic": True, **status})


def test_the_one_backend_that_fits_is_chosen(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    assert registry.backend().name == "cuda", "the GPU's backend was not chosen by itself"


def test_the_variable_beats_the_automatic_choice(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    assert registry.backend().name == "cpu", "PORTAGPU_BACKEND did not decide"


def test_the_name_asked_for_beats_the_variable(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    assert registry.backend("cuda").name == "cuda", "the explicit name did not decide"


def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    monkeypatch.setenv("PORTAGPU_BACKEND", "")
    assert registry.backend().name == "cuda", "an empty PORTAGPU_BACKEND was taken for a name"


def test_the_variable_is_read_once(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    first = registry.backend()
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    assert registry.backend() is first, "the default changed with the environment"
    assert registry.backend(index=1).name == "cuda", "an index re-read the environment"


@pytest.mark.parametrize(
    ("kind", "gpus", "because"),
    [
        ("cpu", ("nvidia",), "torch 2.13.0 has no GPU build"),
        ("cpu", (), "torch 2.13.0 has no GPU build"),
        ("cuda", (), "this machine has no GPU"),
        ("rocm", (), "this machine has no GPU"),
    ],
)
def test_the_cpu_is_chosen_with_one_line_that_says_why(monkeypatch, caplog, kind, gpus, because):
    machine(monkeypatch, kind, gpus)
    use_plugins(
        monkeypatch, cpu_plugin(), gpu_plugin(usable=False, automatic=False, reason="no device")
    )
    with caplog.at_level(logging.INFO, logger="portagpu"):
        handles = {registry.backend(), registry.backend(), registry.backend(index=0)}
    assert {handle.name for handle in handles} == {"cpu"}, "the CPU was not chosen"
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"portagpu: using the CPU, because {because}"], "not exactly one line"


@pytest.mark.parametrize(("local_rank", "lines"), [("0", 1), ("1", 0), ("7", 0)])
def test_one_rank_of_a_machine_says_that_the_cpu_was_chosen(monkeypatch, caplog, local_rank, lines):
    machine(monkeypatch, "cpu", ())
    use_plugins(monkeypatch, cpu_plugin())
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    with caplog.at_level(logging.INFO, logger="portagpu"):
        assert registry.backend().name == "cpu"
    assert len(caplog.records) == lines, f"rank {local_rank} wrote {len(caplog.records)} lines"


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu", None])
def test_a_gpu_that_torch_cannot_use_is_an_error_with_every_reason(monkeypatch, kind):
    machine(monkeypatch, kind, ("amd", "amd"))
    use_plugins(
        monkeypatch,
        cpu_plugin(),
        gpu_plugin(usable=False, automatic=False, reason="the driver is too old"),
        gpu_plugin("third", usable=True, automatic=False, reason="only on request"),
    )
    with pytest.raises(BackendNotFound) as caught:
        registry.backend()
    message = str(caught.value)
    assert "2 GPU(s) of amd" in message, "the GPUs are not named"
    assert caught.value.reasons == {
        "cpu": "torch runs on the CPU",
        "cuda": "the driver is too old",
        "third": "only on request",
    }, "a candidate's reason is missing"
    for reason in caught.value.reasons.values():
        assert reason in message, "the message leaves a reason out"
    assert "PORTAGPU_BACKEND=cpu" in message, "the way out is not offered"
    assert "\n" not in message, "more than one line"
    assert "None" not in message, "an unknown value was printed"


def test_two_that_fit_are_an_error_that_names_both(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin("alpha"), gpu_plugin("beta"))
    with pytest.raises(BackendNotFound, match=r"alpha and beta both fit.*set PORTAGPU_BACKEND"):
        registry.backend()


def test_one_that_fits_but_is_unusable_is_not_chosen(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin(usable=False, reason="no permission"))
    with pytest.raises(BackendNotFound, match="no permission"):
        registry.backend()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cudda", r"^PORTAGPU_BACKEND=cudda: .*did you mean 'cuda'\?"),
        ("CPU", r"^PORTAGPU_BACKEND=CPU: .*did you mean 'cpu'\?"),
        ("zzz", r"^PORTAGPU_BACKEND=zzz: .*installed are: cpu, cuda"),
        ("cuda", r"^PORTAGPU_BACKEND=cuda: .*cannot be used.*the driver is too old"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, value, message):
    machine(monkeypatch, "cpu")
    use_plugins(
        monkeypatch,
        cpu_plugin(),
        gpu_plugin(usable=False, automatic=False, reason="the driver is too old"),
    )
    monkeypatch.setenv("PORTAGPU_BACKEND", value)
    with pytest.raises(BackendNotFound, match=message):
        registry.backend()
    assert functions.is_available() is False, "is_available disagrees with backend()"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cudda", "did you mean 'cuda'"),
        ("cuda,rocm", "name one backend; installed are: cpu, cuda"),
        ("zzz", "installed are: cpu, cuda"),
        ("", "installed are"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest(monkeypatch, name, message):
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    with pytest.raises(BackendNotFound, match=message):
        registry.backend(name)


@pytest.mark.parametrize("name", [0, True, b"cpu", 1.5])
def test_a_name_that_is_not_a_string_is_a_type_error(monkeypatch, name):
    use_plugins(monkeypatch, cpu_plugin())
    with pytest.raises(TypeError, match=r"name is a str.*backend\(index=\.\.\.\)"):
        registry.backend(name)


@pytest.mark.parametrize("index", [False, True, 0.0, "0", "", [], 1.5])
def test_an_index_that_is_not_an_int_is_a_type_error(monkeypatch, index):
    use_plugins(monkeypatch, gpu_plugin())
    with pytest.raises(TypeError, match="a device index is an int"):
        registry.backend("cuda", index=index)
    with pytest.raises(TypeError, match="a device index is an int"):
        registry.backend(index=index)


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_an_index_that_is_not_there_says_how_many_are(monkeypatch, index):
    use_plugins(monkeypatch, gpu_plugin())
    with pytest.raises(IndexError, match=f"no device {index}: it sees 2, numbered from 0"):
        registry.backend("cuda", index=index)


def test_handles_are_made_once(monkeypatch):
    plugin = gpu_plugin()
    use_plugins(monkeypatch, plugin)
    handles = [registry.backend("cuda"), registry.backend("cuda", 0), registry.backend()]
    assert len(set(handles)) == 1, "one device has several handles"
    assert registry.backend(index=1) is registry.backend("cuda", 1), "one device, two handles"
    assert plugin.opened == [0, 1], "a device was opened twice"


def test_only_the_device_asked_for_is_opened(monkeypatch):
    plugin = gpu_plugin()
    use_plugins(monkeypatch, plugin)
    functions.set_device(1)
    assert plugin.opened == [1], "a rank that chose device 1 opened another one as well"
    assert registry.backend().index == 1, "set_device did not decide what backend() returns"


def test_set_device_changes_the_next_backend_and_no_handle(monkeypatch):
    use_plugins(monkeypatch, gpu_plugin())
    before = registry.backend()
    activated = FakeBackend.activated
    functions.set_device(1)
    after = registry.backend()
    assert (before.index, after.index) == (0, 1), "set_device changed the wrong one"
    assert functions.current_device() == 1, "current_device did not follow"
    assert FakeBackend.activated == activated + 1, "the driver was not informed"
    functions.set_device(0)
    assert registry.backend() is before, "going back made another handle"


def test_set_device_follows_the_backend_in_use(monkeypatch):
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin())
    machine(monkeypatch, "cuda", ("nvidia",))
    functions.set_device(1)
    registry.backend("cpu")
    assert registry.backend().name == "cuda", "asking for another backend changed the default"


def test_a_wrong_device_changes_nothing(monkeypatch):
    use_plugins(monkeypatch, gpu_plugin())
    before = registry.backend()
    with pytest.raises(IndexError, match="no device 7"):
        functions.set_device(7)
    with pytest.raises(TypeError, match="a device index is an int"):
        functions.set_device(True)
    assert registry.backend() is before, "a failed set_device changed the device"


def test_a_negative_device_changes_nothing_as_in_torch(monkeypatch):
    use_plugins(monkeypatch, gpu_plugin())
    functions.set_device(1)
    functions.set_device(-1)
    assert registry.backend().index == 1, "set_device(-1) is a no-op in torch"


def test_many_threads_get_one_handle(monkeypatch):
    plugin = gpu_plugin()
    use_plugins(monkeypatch, plugin)
    start = threading.Barrier(16)
    handles = []

    def first_call():
        start.wait(60)
        handles.append(registry.backend())

    threads = [threading.Thread(target=first_call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(handles) == 16, "a thread got no handle"
    assert len(set(handles)) == 1, "threads got different handles"
    assert plugin.opened == [0], "the device was opened more than once"


def test_a_shared_device_takes_any_rank(monkeypatch):
    plugin = cpu_plugin()
    monkeypatch.setattr(FakePlugin, "shared", True)
    use_plugins(monkeypatch, plugin)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    assert {registry.backend(index=rank).index for rank in (0, 1, 7)} == {0}
    with pytest.raises(IndexError, match="no device -1"):
        registry.backend(index=-1)


def test_without_torch_the_answer_is_what_to_install(monkeypatch):
    machine(monkeypatch, None, installed=False)
    use_plugins(monkeypatch, FakePlugin("cpu", usable=False, reason="torch is not installed"))
    with pytest.raises(MissingDependency, match=r"pip install .*\[torch\]"):
        registry.backend()
    assert functions.is_available() is False, "is_available disagrees with backend()"


def test_available_opens_the_usable_ones(monkeypatch):
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin(usable=False, reason="no"), gpu_plugin("x"))
    found = registry.available()
    assert {name: handle.index for name, handle in found.items()} == {"cpu": 0, "x": 0}


def rank_variables(monkeypatch, local_rank: int, ranks: int) -> None:
    """As torchrun starts that rank of one machine."""
    for name, value in (("RANK", local_rank), ("LOCAL_RANK", local_rank)):
        monkeypatch.setenv(name, str(value))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, str(ranks))


@pytest.mark.parametrize(
    ("devices", "local_rank", "ranks", "index"),
    [
        (4, 2, 4, 2),
        (4, 0, 4, 0),
        (4, 1, 2, 1),
        # a mask shows each rank its own device
        (1, 3, 4, 0),
    ],
)
def test_a_rank_gets_the_device_of_its_number(monkeypatch, devices, local_rank, ranks, index):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin(count=devices))
    rank_variables(monkeypatch, local_rank, ranks)
    before = FakeBackend.activated
    gpu = registry.backend()
    assert gpu.index == index
    assert FakeBackend.activated - before == (index != 0), "torch's current device is another"
    assert registry.backend() is gpu


def test_torch_s_current_device_counts_before_the_rank_s(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    chosen = gpu_plugin(count=4)
    monkeypatch.setattr(chosen, "current_index", lambda: 3, raising=False)
    use_plugins(monkeypatch, cpu_plugin(), chosen)
    rank_variables(monkeypatch, 1, 4)
    assert registry.backend().index == 3, "what a framework had chosen was changed"


def test_a_device_that_was_set_counts_before_the_rank_s(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin(count=2))
    rank_variables(monkeypatch, 3, 4)
    functions.set_device(1)
    assert registry.backend().index == 1


@pytest.mark.parametrize(("local_rank", "ranks"), [(0, 8), (7, 8)])
def test_more_ranks_than_devices_name_both_numbers(monkeypatch, local_rank, ranks):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin(count=4))
    rank_variables(monkeypatch, local_rank, ranks)
    with pytest.raises(BackendNotFound) as caught:
        registry.backend()
    assert "8 ranks run on this machine and the cuda backend sees 4 devices" in str(caught.value)
    assert "portagpu.set_device" in str(caught.value)


def test_broken_variables_of_a_launcher_keep_no_device_closed(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    use_plugins(monkeypatch, cpu_plugin(), gpu_plugin(count=4))
    rank_variables(monkeypatch, 2, 4)
    monkeypatch.setenv("RANK", "two")
    assert registry.backend().index == 0


@pytest.mark.parametrize(
    ("index", "gpu", "cpu"),
    [
        (None, "cuda", "cpu"),
        (0, "cuda:0", "cpu"),
        (3, "cuda:3", "cpu"),
        ("1", "cuda:1", "cpu"),
        ("cuda:1", "cuda:1", "cuda:1"),
        ("cpu", "cpu", "cpu"),
    ],
)
def test_a_device_has_a_text_without_being_opened(monkeypatch, index, gpu, cpu):
    for plugin, expected in ((gpu_plugin(), gpu), (cpu_plugin(), cpu)):
        forget(monkeypatch)
        machine(monkeypatch, "cuda" if plugin.name == "cuda" else "cpu", ("nvidia",))
        monkeypatch.setattr(plugin, "device_type", plugin.name, raising=False)
        monkeypatch.setattr(plugin, "shared", plugin.name == "cpu", raising=False)
        use_plugins(monkeypatch, plugin)
        assert registry.device_string(index) == expected
        assert not registry.is_initialized(), "a device was opened for its text"


def test_the_library_has_a_name_without_a_device_being_opened(monkeypatch):
    machine(monkeypatch, "cuda", ("nvidia",))
    plugin = gpu_plugin()
    monkeypatch.setattr(plugin, "device_type", "cuda", raising=False)
    monkeypatch.setattr(plugin, "c10d_name", "nccl", raising=False)
    use_plugins(monkeypatch, plugin)
    assert (registry.c10d_name(), registry.c10d_name(host=True)) == ("nccl", "cpu:gloo,cuda:nccl")
    assert not registry.is_initialized(), "a device was opened for its library's name"
