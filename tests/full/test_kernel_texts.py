"""Logs of real machines, from the paste to the verdict: no calm fault, and no false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portagpu.runs.results.run import Verdict
from tests.vendor_texts.test_kernel_texts import coded, each_text, judged

if TYPE_CHECKING:
    from pathlib import Path


RAS = "amdgpu 0000:0c:00.0: "


@pytest.mark.parametrize("prefix", ["", "amdgpu: ", "{17}", "amdgpu: {17}"])
@pytest.mark.parametrize(
    ("sentence", "code", "verdict"),
    [
        # amdgpu_ras.c of 5.15, 6.1, 6.6, 6.10 and 6.12; amdgpu_umc.c of 6.1 and 6.10;
        # ras/rascore/ras_aca.c of 6.18
        ("{n} uncorrectable hardware errors detected in gfx block", "RAS uncorrectable (gfx)",
         Verdict.FAIL),
        ("socket: 1, die: 2 {n} uncorrectable hardware errors detected in umc block",
         "RAS uncorrectable (umc)", Verdict.FAIL),
        ("socket: 1, die: 2, {n} new uncorrectable hardware errors detected in sdma block",
         "RAS uncorrectable (sdma)", Verdict.FAIL),
        ("{n} uncorrectable hardware errors and 0 deferred hardware errors detected in UMC block",
         "RAS uncorrectable (UMC)", Verdict.FAIL),
        ("0 uncorrectable hardware errors and {n} deferred hardware errors detected in UMC block",
         "RAS deferred (UMC)", Verdict.UNVERIFIED),
        ("socket: 1, die: 2, {n} new deferred hardware errors detected in umc block",
         "RAS deferred (umc)", Verdict.UNVERIFIED),
        ("socket: 1, die: 2, {n} deferred hardware errors detected in total in umc block",
         "RAS deferred total (umc)", Verdict.UNVERIFIED),
        ("{n} uncorrectable hardware errors detected in total in umc block",
         "RAS uncorrectable total (umc)", Verdict.UNVERIFIED),
        ("{n} correctable hardware errors detected in umc block, no user action is needed.",
         "RAS correctable (umc)", Verdict.UNVERIFIED),
        ("socket: 1, die: 2, {n} correctable hardware errors detected in total in gfx block",
         "RAS correctable total (gfx)", Verdict.UNVERIFIED),
        ("socket: 0, die: 1, {n} new uncorrectable hardware errors detected in XGMI_WAFL Block.",
         "RAS uncorrectable (XGMI_WAFL)", Verdict.FAIL),
    ],
)  # fmt: skip
def test_a_count_of_ras_is_an_event_unless_it_is_none(
    tmp_path: Path, sentence: str, code: str, verdict: Verdict, prefix: str
) -> None:
    for count in (1, 2, 4096):
        text = f"[ 1234.567890] {RAS}{prefix}{sentence.format(n=count)}\n"
        assert coded(text) == {("0000:0c:00.0", code)}
        assert judged(tmp_path, text)[0] is verdict
    assert not coded(f"[ 1234.567890] {RAS}{prefix}{sentence.format(n=0)}\n")


@each_text
@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace(": ", ":\t").replace("] ", "]\t"),
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"# {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()),
        lambda text: f"$ dmesg\n{text}$ uptime\n 10:00:00 up 3 days,  1 user\n",
    ],
    ids=[
        "CRLF",
        "UTF-16",
        "tabs",
        "quoted",
        "quoted as a comment",
        "coloured",
        "with another output",
    ],
)
def test_how_a_log_was_pasted_changes_nothing(
    tmp_path: Path, stated: dict[str, Any], changed: Any
) -> None:
    text = stated["text"].lstrip("\n")
    assert judged(tmp_path, changed(text)) == judged(tmp_path, text)


@pytest.mark.parametrize(
    ("sentence", "code", "verdict"),
    [
        # amdkfd/kfd_int_process_v9.c of 6.1, 6.6 and 6.12, kfd_int_process_v12_1.c; amdgpu_ras.c
        ("RAS poison consumption, unmap queue flow succeeded: client id 12",
         "RAS poison contained", Verdict.UNVERIFIED),
        ("RAS poison consumption, fall back to gpu reset flow: client id 12",
         "RAS poison consumed", Verdict.FAIL),
        ("poison is consumed by client 12, kick off gpu reset flow", "RAS poison consumed",
         Verdict.FAIL),
        ("poison is consumed by source 3, kick off gpu reset flow", "RAS poison consumed",
         Verdict.FAIL),
        ("GPU reset for gfx RAS poison consumption is issued!", "RAS poison consumed",
         Verdict.FAIL),
        ("Poison is created, no user action is needed.", "RAS poison created",
         Verdict.UNVERIFIED),
        ("RAS poison is created, no user action is needed.", "RAS poison created",
         Verdict.UNVERIFIED),
        ("Uncorrectable error detected in UMC inst: 1, chan_idx: 3", "RAS uncorrectable (UMC)",
         Verdict.FAIL),
        # vcn_v2_5.c, jpeg_v2_5.c, amdgpu_xgmi.c
        ("Poison detected in VCN0, sub_block1", "RAS poison detected", Verdict.UNVERIFIED),
        ("Poison detected in JPEG0 sub_block1", "RAS poison detected", Verdict.UNVERIFIED),
        ("XGMI PCS CRCErr detected", "XGMI error", Verdict.UNVERIFIED),
        # amdgpu_ras_eeprom.c of 5.10, 6.1 and 6.12
        ("Saved bad pages(12) reaches threshold value(10).", "RAS threshold reached",
         Verdict.FAIL),
        ("Saved bad pages 200 reaches threshold value 128", "RAS threshold reached",
         Verdict.FAIL),
        ("RAS records:120 exceeds 90% of threshold:128", "RAS threshold near",
         Verdict.UNVERIFIED),
        # arcturus_ppt.c of 5.8 and newer, smu_v13_0_6_ppt.c of 6.6 and newer
        ("WARN: GPU thermal throttling temperature reached, expect performance decrease. VR.",
         "throttled", Verdict.UNVERIFIED),
        ("WARN: GPU is throttled, expect performance decrease. HBM.", "throttled",
         Verdict.UNVERIFIED),
        # psp_v11_0.c, soc21.c, nv.c, amdgpu_smu.c, aldebaran.c, amdgpu_device.c
        ("psp mode 1 reset failed!", "GPU reset failed", Verdict.FAIL),
        ("GPU mode1 reset failed", "GPU reset failed", Verdict.FAIL),
        ("Mode2 reset failed!", "GPU reset failed", Verdict.FAIL),
        ("ASIC reset failed with error, -110 for drm dev, 0000:0c:00.0", "GPU reset failed",
         Verdict.FAIL),
        ("sw_init of IP block <gmc_v9_0> failed -12", "not initialised", Verdict.FAIL),
        ("resume of IP block <psp> failed -62", "not resumed", Verdict.FAIL),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", [RAS, RAS + "amdgpu: ", RAS + "{3}", "drmn0: ", "amdgpu: "])
def test_a_sentence_of_the_driver_is_read_with_every_prefix(
    tmp_path: Path, sentence: str, code: str, verdict: Verdict, prefix: str
) -> None:
    text = f"[ 1234.567890] {prefix}{sentence}\n"
    device = "0000:0c:00.0" if prefix.startswith(RAS) else prefix.split(":")[0]
    assert coded(text) == {("-" if device == "amdgpu" else device, code)}
    assert judged(tmp_path, text)[0] is verdict
