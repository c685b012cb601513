"""A fake ``rocprofv3``: the argument parser of its versions, and small files in place of rocpd.

Options from ``parse_arguments`` in ROCm/rocm-systems, projects/rocprofiler-sdk,
source/bin/rocprofv3.py: 0.4.0 (tag rocm-6.2.2 of ROCm/rocprofiler-sdk, lines 40 to 190), 0.5.0
(@8ab1ed75, lines 101 to 372), 1.0.0 (@1b1610fc, lines 251 to 814). The environment of the command
is that of ``run`` there.

FAKE_ROCPROF_VERSION is the version; FAKE_PROFILE as in the fake nsys.
"""

import argparse
import os
import sys

VERSION = os.environ.get("FAKE_ROCPROF_VERSION", "1.0.0")
RELEASE = tuple(int(part) for part in VERSION.split("."))


def parser():
    # allow_abbrev=False: an unknown option is an error
    found = argparse.ArgumentParser(prog="rocprofv3", allow_abbrev=False)
    for name in ("hip-trace", "hip-runtime-trace", "marker-trace", "kernel-trace"):
        found.add_argument(f"--{name}", nargs="?", const=True)
    found.add_argument("--memory-copy-trace", nargs="?", const=True)
    found.add_argument("-o", "--output-file")
    found.add_argument("-d", "--output-directory")
    if RELEASE >= (0, 5):
        found.add_argument("--rccl-trace", nargs="?", const=True)
    formats = ["csv", "json", "pftrace"]
    if RELEASE >= (0, 6):
        # CHANGELOG 0.6.0: "--collection-period"
        found.add_argument("--collection-period", nargs="+")
    if RELEASE >= (1, 0):
        found.add_argument("-v", "--version", action="store_true")
        found.add_argument("--selected-regions", nargs="?", const=True)
        formats += ["otf2", "rocpd"]
    found.add_argument("-f", "--output-format", nargs="+", choices=formats, type=str.lower)
    return found


def main():
    words = sys.argv[1:]
    command = []
    if "--" in words:
        place = words.index("--")
        words, command = words[:place], words[place + 1 :]
    options = parser().parse_args(words)
    if getattr(options, "version", False):
        # main() prints the table CONST_VERSION_INFO
        print(f"    {'version':>16}: {VERSION}\n    {'git_revision':>16}: 1b1610fc")
        return 0
    if not command:
        print("Fatal error: No application provided", file=sys.stderr)
        return 1
    for period in getattr(options, "collection_period", None) or ():
        # convert_triplet(delay, duration, repeat)
        delay, duration, repeat = period.split(":")
        float(delay), float(duration), int(repeat)
    changes = {
        "ROCP_TOOL_LIBRARIES": "/opt/rocm/lib/rocprofiler-sdk/librocprofiler-sdk-tool.so",
        "ROCPROF_OUTPUT_FILE_NAME": options.output_file,
        "ROCPROF_OUTPUT_PATH": options.output_directory,
        "ROCPROF_OUTPUT_FORMAT": ",".join(options.output_format),
    }
    os.environ.update(changes)
    # in place of LD_PRELOAD: each process that the command starts writes its own file
    library = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rocprofv3_library")
    paths = [os.environ["PYTHONPATH"], library] if os.environ.get("PYTHONPATH") else [library]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.execvp(command[0], command)


sys.exit(main())
