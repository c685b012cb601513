"""In place of the library that rocprofv3 loads into each process: it writes a file at its end.

Names of files are those of ``get_output_filename`` (source/lib/output/output_stream.cpp) and
``format_path`` (format_path.cpp) in ROCm/rocm-systems, projects/rocprofiler-sdk @1b1610fc.
"""

import atexit
import json
import os
import re
import shutil
import sqlite3


def format_path(text):
    text = text.replace("%pid%", str(os.getpid()))
    while match := re.search(r"%env\{([A-Z0-9_]+)\}%", text):
        text = text.replace(match[0], os.environ.get(match[1], ""))
    return text


def record():
    """What the library does in the process of the command, when it ends."""
    what = json.loads(os.environ.get("FAKE_PROFILE", "{}"))
    missing = os.environ.get("FAKE_MISSING_RANK", "none") == os.environ.get("RANK")
    if missing or not what.get("report", True):
        return
    path = os.path.join(
        os.environ["ROCPROF_OUTPUT_PATH"],
        format_path(os.environ["ROCPROF_OUTPUT_FILE_NAME"]) + "_results.db",
    )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if sample := os.environ.get("FAKE_SAMPLE"):
        shutil.copy(sample, path)
        return
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE events (kind, name, start, stop)")
        database.execute("CREATE TABLE messages (level, text)")
        # a launcher, which has no rank, uses no GPU
        launcher = "%env" in os.environ["ROCPROF_OUTPUT_FILE_NAME"] and "RANK" not in os.environ
        for number in range(0 if launcher else what.get("kernels", 2)):
            row = ("kernel", "Cijk_Ailk", number * 100, number * 100 + 50)
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
        for message in what.get("messages", []):
            database.execute("INSERT INTO messages VALUES (?, ?)", message)
    database.close()


atexit.register(record)
