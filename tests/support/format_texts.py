"""Outputs of AMD's tools: the files of ``tests/vendor_texts/formats``, by what tests call them."""

from __future__ import annotations

from typing import Final

from tests.conftest import ROOT

FIXTURES: Final = ROOT / "tests/vendor_texts/formats"


def fixture(name: str) -> str:
    """The text of a file of ``tests/vendor_texts/formats``, byte by byte."""
    return (FIXTURES / name).read_bytes().decode()


DEGREES = "\N{DEGREE SIGN}C"

STATIC_JSON_NEW = fixture("amd_smi_json/static-7.14.json")
METRIC_JSON_OLD = fixture("amd_smi_json/metric-6.0.json")
TOPOLOGY_JSON_OLD = fixture("amd_smi_json/topology-6.1-prompt.txt")
TOPOLOGY_JSON_NEW = fixture("amd_smi_json/topology-6.4.json")
XGMI_JSON = fixture("amd_smi_json/xgmi.json")
PARTITION_JSON = fixture("amd_smi_json/partition-6.4.json")
STATIC_TEXT = fixture("amd_smi_text/static.txt")
METRIC_TEXT = fixture("amd_smi_text/metric.txt")
PROCESS_TEXT = fixture("amd_smi_text/process.txt")
LIST_CSV = fixture("amd_smi_text/list.csv")
MONITOR_OLD = fixture("amd_smi_text/monitor-6.0.txt")
MONITOR_NEW = fixture("amd_smi_text/monitor-7.0.txt")
TOPOLOGY_TEXT = fixture("amd_smi_text/topology.txt")
XGMI_TEXT = fixture("amd_smi_text/xgmi.txt")
PARTITION_TEXT = fixture("amd_smi_text/partition.txt")
SUMMARY = fixture("amd_smi_text/summary-7.txt")
ROCM_JSON_OLD = fixture("rocm_smi_json/rocm-5.json")
ROCM_JSON_NEW = fixture("rocm_smi_json/rocm-6-warning.txt")
CONCISE_OLD = fixture("rocm_smi_text/concise-5.txt")
CONCISE_NAMED = fixture("rocm_smi_text/concise-6.0.txt")
CONCISE_NEW = fixture("rocm_smi_text/concise-6.2.txt")
SHOWTOPO = fixture("rocm_smi_text/showtopo.txt")
SHOWRAS = fixture("rocm_smi_text/showras.txt")
ROCMINFO = fixture("rocminfo/one-cpu-two-gpus.txt")
AMDGPU_TOP = fixture("amdgpu_top/json-0.11.json")
AMDGPU_TOP_DUMP = fixture("amdgpu_top/dump-0.11.json")
