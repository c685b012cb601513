"""The child of :func:`portagpu.subprocesses.call`: it answers one request."""

from __future__ import annotations

import importlib

from portagpu.subprocesses.channel import parent_channel
from portagpu.text import error_line


def main() -> None:
    channel = parent_channel()
    request = channel.receive()
    if request is None:
        return
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        channel.send({"value": function(*request["arguments"])})
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
        channel.send({"raised": error_line(error)})


if __name__ == "__main__":
    main()
