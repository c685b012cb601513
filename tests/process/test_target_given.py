"""``--target FILE``: a product that this installation does not have, from its file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs

L4 = (ROOT / "matrix/targets/nvidia-l4.toml").read_text("utf-8")
BATCH = ("--batch", "8", "--sequence", "2048")
RECORDING = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.86.15</driver_version><cuda_version>12.8</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA L4 Example</product_name>
    <product_architecture>Ada Lovelace</product_architecture>
    <uuid>GPU-00000000-0000-0000-0000-000000000001</uuid>
    <fb_memory_usage><total>23034 MiB</total><used>1 MiB</used></fb_memory_usage>
  </gpu>
</nvidia_smi_log>
"""


def product(folder: Path, **replaced: str) -> Path:
    """The file of a product like the L4, with a name of its own."""
    text = L4.replace('"nvidia-l4"', '"nvidia-l4x"').replace('"NVIDIA L4"', '"NVIDIA L4 Example"')
    assert text.count("NVIDIA L4 Example") >= 1
    for old, new in replaced.items():
        text = text.replace(old, new)
    lines = [line for line in text.splitlines() if not line.startswith(("pci_ids", "pci_source"))]
    path = folder / "nvidia-l4x.toml"
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_file_is_a_target_of_this_call_and_no_other(tmp_path: Path, verbs: ForkedVerbs) -> None:
    path = product(tmp_path)
    shown = json.loads(verbs("targets", "show", str(path), "--json", "-").ok())
    assert shown["id"] == "nvidia-l4x"
    assert "there is no target" in verbs("targets", "show", "nvidia-l4x").err
    plan = verbs("plan", "--model", "llama-3.1-8b", "--ranks", "8", *BATCH, "--target", str(path))
    assert plan.code in (0, 3), plan.err
    assert "nvidia-l4x" in plan.out


def test_a_machine_is_recognised_as_the_product_of_the_file(
    tmp_path: Path, verbs: ForkedVerbs
) -> None:
    recording = tmp_path / "smi.xml"
    recording.write_text(RECORDING, "utf-8")
    words = ("bringup", "--replay", str(recording), "--json", "-", "--target")
    run = json.loads(verbs(*words, str(product(tmp_path))).out)
    (found,) = (each for each in run["results"] if each["id"] == "identity/target")
    assert found["verdict"] == "PASS", found["reason"]
    assert "nvidia-l4x" in found["reason"]
    other = json.loads(verbs(*words, "nvidia-l4").out)
    (found,) = (each for each in other["results"] if each["id"] == "identity/target")
    assert found["verdict"] == "FAIL", found["reason"]


def test_a_file_that_is_wrong_or_not_there_is_one_line(tmp_path: Path, verbs: ForkedVerbs) -> None:
    wrong = product(tmp_path, **{"schema = ": "scheme = "})
    for place, said in ((wrong, "nvidia-l4x.toml: "), (tmp_path / "no.toml", "no.toml")):
        ended = verbs("health", "--target", str(place))
        assert ended.code == 2
        assert said in ended.err.splitlines()[-1]


def test_an_id_that_is_taken_is_refused_and_the_known_file_is_the_known_target(
    tmp_path: Path, verbs: ForkedVerbs
) -> None:
    same = ROOT / "matrix/targets/nvidia-l4.toml"
    assert "nvidia-l4:" in verbs("targets", "show", str(same)).ok()
    other = tmp_path / "nvidia-l4.toml"
    other.write_text(L4.replace('product = "', 'product = "Another '), "utf-8")
    ended = verbs("targets", "show", str(other))
    assert ended.code == 2
    assert "'nvidia-l4' is defined already" in ended.err


def test_scripts_for_nodes_name_the_file(tmp_path: Path, verbs: ForkedVerbs) -> None:
    path = product(tmp_path)
    out = tmp_path / "scripts"
    verbs("fleet", "scripts", "--target", str(path), "--out", str(out)).ok()
    assert any(str(path) in each.read_text("utf-8") for each in out.iterdir())
