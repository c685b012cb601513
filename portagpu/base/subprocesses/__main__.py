"""The child of :class:`portagpu.base.subprocesses.Caller`: it answers requests one by one."""

from __future__ import annotations

import importlib
from typing import Any

from portagpu.base.subprocesses.channel import parent_channel
from portagpu.base.text import error_line


def main() -> None:
    channel = parent_channel()
    channel.send({"ready": True})
    while (request := channel.receive()) is not None:
        channel.send(_answer(request))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return {"value": function(*request["arguments"])}
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
        return {"raised": error_line(error)}


if __name__ == "__main__":
    main()
