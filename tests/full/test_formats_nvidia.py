"""Readers of nvidia-smi's outputs over texts of its oldest and newest generations."""

from __future__ import annotations

from portagpu_cuda.formats import nvidia_smi_text, nvidia_smi_xml, nvidia_topo
from tests.vendor_texts.test_formats_nvidia import fixture


def test_500_gpus_are_read() -> None:
    one = fixture("nvidia_smi_xml/v2-fermi.xml")
    begin, end = one.index("\t<gpu id"), one.index("\t<gpu id", one.index("\t<gpu id") + 1)
    gpus = "".join(one[begin:end].replace("0000:05:00.0", f"{n:04x}:05:00.0") for n in range(500))
    log = nvidia_smi_xml.parse(one[:begin].replace(">2<", ">500<") + gpus + "</nvidia_smi_log>")
    assert [gpu.index for gpu in log.readings] == list(range(500))
    names = [f"GPU{n}" for n in range(500)]
    rows = "\n".join(f"{a}\t" + "\t".join("X" if a == b else "NV2" for b in names) for a in names)
    matrix = nvidia_topo.parse("\t" + "\t".join(names) + "\tCPU Affinity\n" + rows + "\n")
    assert len(matrix.links) == 500 * 499
    listed = nvidia_smi_text.parse("".join(f"GPU {n}: L4 (UUID: GPU-a{n})\n" for n in range(500)))
    assert listed.readings[499].uuid == "GPU-a499"
