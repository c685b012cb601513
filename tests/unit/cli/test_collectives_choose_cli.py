"""``portagpu collectives choose``: text, JSON, tables of measured times, and wrong requests."""

from __future__ import annotations

import json

import pytest

from portagpu.base.units import parse_size
from portagpu.cli import main

H100 = ["collectives", "choose", "--ranks", "8", "--target", "nvidia-h100-sxm"]
PLAIN = ["collectives", "choose", "--ranks", "2"]


def table(times, operation="all_reduce", ranks=2):
    """What a test program prints."""
    rows = "\n".join(
        f"{size:12d} {size // 4:12d} float sum -1 {time:8.2f} 1.0 1.0 0 {time:8.2f} 1.0 1.0 0"
        for size, time in times
    )
    devices = "\n".join(
        f"#  Rank  {rank} Group  0 Pid  {rank} on  host device  {rank} [0x0{rank}] Acme"
        for rank in range(ranks)
    )
    return (
        f"# Collective test starting: {operation}_perf\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 1 iters: 20 "
        f"agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n{devices}\n#\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
        "time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
        "(us)  (GB/s)  (GB/s)\n"
        f"{rows}\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n#\n"
    )


LINE = [(1 << power, 30 + 2**power / 2000) for power in range(10, 26)]


def test_the_answer_says_how_and_what_it_rests_on(capfd):
    assert main([*H100, "--bytes", "64M", "--library-version", "2.27.3"]) == 0
    out = capfd.readouterr().out
    lines = out.splitlines()
    assert lines[0] == (
        "all_reduce of 64 MiB over 8 ranks: NVLS Simple: about 293.1 µs, busbw 400.7 GB/s; "
        "271.7 µs by the library's model"
    )
    assert lines[1].startswith(
        "basis: model of another version: constants of NCCL 2.30.7, library 2.27.3 (https://"
    )
    assert "symmetric memory kernels (since 2.27.3): may run instead" in out
    assert lines[2].startswith("library's own answer: not available")
    assert "against 10 sizes of published tables of nvidia-h100-sxm" in out
    assert "two-shot: AllReduce_RSxLDMC_AGxSTMC" in out
    rows = [line.split() for line in lines]
    assert ["Ring", "Simple", "382.2", "307.3"] in rows
    assert any(row[:3] == ["channels", "of", "Ring"] and "estimated" in row for row in rows)


def test_a_range_in_which_the_model_is_wrong_is_reported(capfd):
    asked = ["collectives", "choose", "--ranks", "8", "--target", "nvidia-b200-sxm"]
    assert main([*asked, "--bytes", "256K"]) == 0
    assert "the model is wrong here: its times are 2.8 times too short" in capfd.readouterr().out


def test_json_has_every_candidate_input_and_error(capfd, tmp_path):
    path = tmp_path / "choice.json"
    assert main([*H100, "--bytes", "1G", "--op", "all_gather", "--json", str(path)]) == 0
    found = json.loads(path.read_text("utf-8"))
    assert found["schema"] == "portagpu.choice/1"
    choice = found["choice"]
    assert choice["best"]["algorithm"] == "Ring"
    assert choice["question"]["size_bytes"] == 1 << 30
    basis = choice["basis"]
    assert (basis["kind"], basis["words"]) == ("model", "model, constants of version 2.30.7")
    assert (basis["library"], basis["version"]) == ("NCCL", "2.30.7")
    assert choice["expected_us"] == choice["interval"]["likely_us"]
    assert {each["name"]: each["may_run"] for each in choice["other_ways"]}["copy engines"] is True
    assert {each["name"]: each["estimated"] for each in choice["inputs"]}["links"] is False
    # of another GPU, whose tables are the nearest
    assert choice["known_error"]["target"] == "nvidia-h100-sxm"
    assert choice["interval"]["compared"] is True
    assert choice["interval"]["low_us"] < choice["best"]["time_us"] < choice["interval"]["high_us"]
    assert choice["shots"] is None
    assert found["buckets"] == []
    capfd.readouterr()
    assert main([*H100, "--bytes", "1G", "--json", "-"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["choice"]["known_error"]["wrong"] is False
    assert "NVLS Simple" in captured.err


def test_given_channels_algorithms_and_settings_count(capfd):
    nodes = ["collectives", "choose", "--ranks", "24", "--nodes", "3", "--bytes", "128K"]
    given = ["--target", "nvidia-h100-sxm", "--nic-gbs", "25", "--nics", "8"]
    # what NVIDIA/nccl#1453 logged
    assert main([*nodes, *given, "--graph", "Ring=8x24", "--algorithm", "Tree"]) == 0
    out = capfd.readouterr().out
    assert "Tree LL128: about 68.8 µs" in out
    assert "51.6 µs by the library's model" in out
    assert "Ring " not in out.partition("input")[0]
    assert main([*nodes, *given, "--graph", "Tree=8x12/12", "--set", "cpu=amd"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "channels of Tree 8 x 12 GB/s given" in out
    assert "host CPU amd given" in out


def test_measured_times_are_taken_from_a_table(capfd, tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(table(LINE), encoding="utf-8")
    assert main([*PLAIN, "--bytes", "1M", "--measured", str(path)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "all_reduce of 1 MiB over 2 ranks: 554.3 µs, busbw 1.892 GB/s"
    assert lines[1] == "basis: measured on 16 points, error p50 0%, p95 0%"
    assert main([*PLAIN, "--bytes", "1G", "--measured", str(path)]) == 0
    assert "1 GiB is outside of the measured sizes, 1 KiB to 32 MiB" in capfd.readouterr().out


def test_a_table_without_names_is_taken_for_what_was_asked(capfd, tmp_path):
    path = tmp_path / "table.txt"
    nameless = [line for line in table(LINE).splitlines() if "Collective" not in line]
    path.write_text("\n".join(nameless), encoding="utf-8")
    assert main([*PLAIN, "--bytes", "1M", "--op", "broadcast", "--measured", str(path)]) == 0
    assert capfd.readouterr().out.startswith("broadcast of 1 MiB over 2 ranks: 554.3 µs")


def test_bucket_sizes_are_chosen_with_their_basis(capfd, tmp_path):
    params = tmp_path / "params.json"
    params.write_text(json.dumps([4 << 20] * 30), encoding="utf-8")
    buckets = ["--params", str(params), "--backward-ms", "2", "--json", str(tmp_path / "j.json")]
    assert main([*H100, *buckets]) == 0
    out = capfd.readouterr().out
    assert "DDP: bucket_cap_mb = " in out
    assert "FSDP: groups of parameters (fully_shard) of " in out
    assert "basis of the bucket sizes: model, constants of version 2.30.7" in out
    found = json.loads((tmp_path / "j.json").read_text("utf-8"))
    assert found["choice"] is None
    ddp, fsdp = found["buckets"]
    assert (ddp["kind"], fsdp["kind"]) == ("ddp", "fsdp")
    assert ddp["default"]["cap_mib"] is None
    assert ddp["best"]["step_us"] <= ddp["default"]["step_us"]
    assert sum(ddp["best"]["buckets"]) == 30 * (4 << 20)
    assert ddp["speedup"] >= 1


def test_measured_times_of_one_operation_choose_what_they_can(capfd, tmp_path):
    path, params = tmp_path / "table.txt", tmp_path / "params"
    path.write_text(table(LINE), encoding="utf-8")
    params.write_text("1048576\n2097152\n", encoding="utf-8")
    given = ["--measured", str(path), "--params", str(params), "--backward-ms", "1"]
    assert main([*PLAIN, *given]) == 0
    out = capfd.readouterr().out
    assert "DDP: bucket_cap_mb = " in out
    assert "no buckets for FSDP: " in out
    assert "has no table of all_gather on 2 ranks: it has all_reduce" in out
    assert "basis of the bucket sizes: measured on 16 points" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (H100, "give the size of the buffer, such as --bytes 64M"),
        ([*PLAIN, "--bytes", "8"], "name the GPU with --target, or give measured times"),
        ([*H100, "--bytes", "8", "--backward-ms", "3"], "--params and --backward-ms need"),
        ([*H100, "--bytes", "8Q"], "'8Q' is not a number of bytes"),
        ([*H100, "--bytes", "0"], "'0' is not a number of bytes"),
        ([*H100, "--bytes", "8", "--op", "all_redcue"], "unknown collective 'all_redcue'"),
        ([*H100, "--bytes", "8", "--op", "gather"], "has no gather: it has all_reduce"),
        ([*H100, "--bytes", "8", "--nodes", "3"], "cannot be spread evenly over 3 nodes"),
        ([*H100, "--bytes", "8", "--nodes", "2"], "need the bandwidth of a network port"),
        ([*H100, "--bytes", "8", "--graph", "Ring"], "--graph must be ALGORITHM=CHANNELSxGB/S"),
        ([*H100, "--bytes", "8", "--graph", "Ring=0x3"], "has no bandwidth"),
        ([*H100, "--bytes", "8", "--graph", "Rng=1x3"], "has no algorithm 'Rng'"),
        ([*H100, "--bytes", "8", "--algorithm", "PAT"], "has nothing enabled for all_reduce"),
        ([*H100, "--bytes", "8", "--set", "cpu"], "--set must be NAME=VALUE"),
        ([*H100, "--bytes", "8", "--set", "cpu=z80"], "the option cpu is intel, amd, other"),
        ([*H100, "--bytes", "8", "--measured", "/nowhere"], "cannot read /nowhere: No such file"),
        ([*PLAIN, "--bytes", "8", "--target", "cpu-x86-64"], "there is no cost model"),
        ([*PLAIN, "--bytes", "8", "--target", "nvidia-h1000"], "nvidia-h100"),
        (["collectives", "choose", "--ranks", "1"], "--ranks"),
        ([*H100, "--bytes", "8", "--nic-gbs", "nan"], "GB/s, not nan"),
        ([*H100, "--bytes", "8", "--nic-gbs", "inf"], "GB/s, not inf"),
        ([*H100, "--bytes", "8", "--graph", f"Ring=1x{'9' * 400}"], "GB/s, not inf"),
        ([*H100, "--bytes", "8", "--graph", f"Ring=1x0.{'0' * 310}1"], "GB/s, not 1e-311"),
        ([*H100, "--bytes", "8", "--ranks", "9" * 400], "at most 1048576 ranks"),
        ([*H100, "--bytes", "8", "--graph", "Ring=1x3", "--graph", "Ring=2x3"], "has Ring twice"),
        ([*H100, "--bytes", "8", "--set", "cpu=amd", "--set", "cpu=amd"], "has cpu twice"),
        (
            [*H100, "--bytes", "8", "--library-version", ""],
            "--library-version must be a version such as 2.27.3",
        ),
        (
            [*H100, "--bytes", "8", "--library-version", "new"],
            "must be a version such as 2.27.3, not 'new'",
        ),
        (
            [*PLAIN, "--bytes", "8", "--measured", "times", "--set", "cpu=amd"],
            "--set only applies to a cost model: give --target too",
        ),
        (
            [*PLAIN, "--bytes", "8", "--profile", "here.json", "--algorithm", "Ring"],
            "--profile has the answer already: leave out --algorithm",
        ),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(capfd, arguments, said):
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a list of bytes"),
        ("[]", "each must be a whole number above 0"),
        ("[1, 2.5]", "each must be a whole number above 0"),
        ("[true]", "each must be a whole number above 0"),
        ("[1, -1]", "each must be a whole number above 0"),
        ('["a"]', "each must be a whole number above 0"),
        ("[" * 100_000, "is not a list of bytes"),
        ("1\n2\nlinear.weight", "is not a list of bytes"),
        ("9" * 10_000, "is not a list of bytes"),
    ],
)
def test_a_file_that_lists_no_bytes_is_refused(capfd, tmp_path, text, said):
    path = tmp_path / "params"
    path.write_text(text, encoding="utf-8")
    assert main([*H100, "--params", str(path), "--backward-ms", "3"]) == 2
    captured = capfd.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "there is no row of a table"),
        (table(LINE[:3]), "3 times of 3 sizes of all_reduce on 2 ranks are too few"),
        (table(LINE, ranks=4), "has no table of 2 ranks: it has 4 ranks"),
        (
            table(LINE, operation="all_gather"),
            "has no table of all_reduce on 2 ranks: it has all_g",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(capfd, tmp_path, text, said):
    path = tmp_path / "table.txt"
    path.write_text(text, encoding="utf-8")
    assert main([*PLAIN, "--bytes", "8", "--measured", str(path)]) == 2
    captured = capfd.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8", 8), ("64M", 64 << 20), ("64mb", 64 << 20), ("1.5GiB", 3 << 29), ("2T", 1 << 41)],
)
def test_sizes_are_read_with_binary_prefixes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5", "0.1K", "1e3", "8 8", "9" * 30, "½K"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a number of bytes: write 1048576"):
        parse_size(text)


def test_a_size_is_asked_for_once(capfd, tmp_path, monkeypatch):
    from portagpu.devices.collectives import choice

    asked = []

    def counted(question, *rest, **named):
        asked.append((question.operation, question.size_bytes))
        return plain(question, *rest, **named)

    plain = choice.choose
    monkeypatch.setattr(choice, "choose", counted)
    path = tmp_path / "params"
    path.write_text("1048576\n" * 3000, encoding="utf-8")
    assert main([*H100, "--params", str(path), "--backward-ms", "3"]) == 0
    assert "DDP: bucket_cap_mb" in capfd.readouterr().out
    assert len(asked) == len(set(asked))
