"""A fake ``nsys``: options of the user guide, and small files in place of reports.

It refuses what the guide does not have. Source of options and values: the text of
docs.nvidia.com/nsight-systems/UserGuide, "CLI Profile Command Switch Options" and "CLI Export
Command Switch Options", of a release that knows Blackwell. Not checked: which version was the first
to have an option, and the words with which the real one refuses.

FAKE_NSYS_VERSION is the version; FAKE_PROFILE says what is captured, as JSON: {"kernels": 2,
"messages": [["warning", "..."]], "report": true, "export": true, "damaged": false}. The rank
FAKE_MISSING_RANK gets no report. FAKE_SAMPLE is a file to give instead of a made-up one.
"""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys

VERSION = os.environ.get("FAKE_NSYS_VERSION", "2025.6.3.541-256337736014v0")
RELEASE = tuple(int(part) for part in VERSION.split(".")[:2])
# "--trace": the guides' table of possible parameters, those that a compute job uses
TRACES = {"cuda", "nvtx", "osrt", "cublas", "cudnn", "mpi", "none"}
OPTIONS = {
    "--trace",
    "--sample",
    "--output",
    "--delay",
    "--duration",
    "--kill",
    "--force-overwrite",
    "--capture-range",
    "--cpuctxsw",
    "--capture-range-end",
    "--cuda-graph-trace",
}
SINCE = {"--cuda-graph-trace": (2023, 1)}
VALUES = {
    "--sample": r"process-tree|system-wide|xhv|xhv-system-wide|none",
    "--cpuctxsw": r"process-tree|system-wide|none",
    "--kill": r"none|sigkill|sigterm|\d+",
    "--capture-range": r"none|cudaProfilerApi|hotkey|nvtx",
    "--capture-range-end": r"none|stop|stop-shutdown|repeat(:\d+)?|repeat-shutdown:\d+",
    "--cuda-graph-trace": r"graph|node",
    "--delay": r"\d+",
    "--duration": r"\d+",
}
EXPORT = {"--type", "--output", "--force-overwrite", "--lazy", "--quiet"}


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)


def profile(words):
    options = {}
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if name not in OPTIONS or SINCE.get(name, RELEASE) > RELEASE:
            fail(f"unrecognised option '{name}'")
        if name in VALUES and not re.fullmatch(VALUES[name], value):
            fail(f"Illegal {name} argument '{value}'.")
        options[name] = value
    if not words:
        fail("the target application is missing")
    if not os.access(words[0], os.X_OK):
        # the first word is not looked up in all of PATH
        fail(f"{words[0]}: Not executable")
    traces = set(options.get("--trace", "cuda").split(","))
    if traces - TRACES:
        fail(f"Illegal --trace argument '{options['--trace']}'.")
    output = re.sub(r"%q\{(\w+)\}", lambda match: os.environ.get(match[1], ""), options["--output"])
    done = subprocess.run(words, check=False, env={**os.environ, "NSYS_PROFILING_SESSION_ID": "1"})
    what = json.loads(os.environ.get("FAKE_PROFILE", "{}"))
    if os.environ.get("FAKE_MISSING_RANK", "none") == os.environ.get("RANK"):
        what["report"] = False
    ranges = [".1", ".2"] if options.get("--capture-range-end") == "repeat" else [""]
    for number in ranges if what.get("report", True) else []:
        report = f"{output}{number}.nsys-rep"
        if os.path.exists(report):
            fail(f"Failed to create '{report}': File exists.")
        write(report, what, traces)
    sys.exit(done.returncode)


def write(path, what, traces):
    if sample := os.environ.get("FAKE_SAMPLE"):
        shutil.copy(sample, path)
        return
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE events (kind, name, start, stop)")
        database.execute("CREATE TABLE messages (level, text)")
        if "cuda" in traces:
            for number in range(what.get("kernels", 2)):
                row = ("kernel", "gemm", number * 100, number * 100 + 50)
                database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
        if "nvtx" in traces:
            database.execute("INSERT INTO events VALUES ('range', 'step', 0, 400)")
        for message in what.get("messages", []):
            database.execute("INSERT INTO messages VALUES (?, ?)", message)
    database.close()


def export(words):
    options = {}
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if name not in EXPORT:
            fail(f"unrecognised option '{name}'")
        options[name] = value
    if options.get("--type") != "sqlite" or len(words) != 1:
        fail("one file is needed, and its type")
    if not json.loads(os.environ.get("FAKE_PROFILE", "{}")).get("export", True):
        fail("Failed to export: the report is damaged")
    with open(words[0], "rb") as file, open(options["--output"], "xb") as copy:
        damaged = json.loads(os.environ.get("FAKE_PROFILE", "{}")).get("damaged")
        copy.write(file.read(100 if damaged else -1))


if sys.argv[1:] == ["--version"]:
    print(f"NVIDIA Nsight Systems version {VERSION}")
elif sys.argv[1:2] == ["profile"]:
    profile(sys.argv[2:])
elif sys.argv[1:2] == ["export"]:
    export(sys.argv[2:])
else:
    fail(f"unrecognised command '{sys.argv[1:2]}'")
