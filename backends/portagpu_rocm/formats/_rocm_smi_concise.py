"""The tables of ``rocm-smi`` alone and ``--showhw``, as cards with the keys of its JSON.

Columns are at least two blanks apart. ROCm 5 has one row a GPU; 6.0 and 6.1 have the name in a
second row, cut after 20 characters; 6.2 has KFD node, device id and GUID instead.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS: Final = {
    "Node": "node id",
    "NODE": "node id",
    "DID": "device id",
    "GUID": "guid",
    "GFX VER": "gfx version",
    "VBIOS": "vbios version",
    "BUS": "pci bus",
    "PARTITION ID": "partition id",
    "AvgPwr": "average graphics package power (w)",
    "Power": "average graphics package power (w)",
    "PwrCap": "max graphics package power (w)",
    "SCLK": "sclk clock speed",
    "MCLK": "mclk clock speed",
    "VRAM%": "vram%",
    "GPU%": "gpu use (%)",
}
_PARTITIONS: Final = ("memory partition", "compute partition", "partition id")
_NAME_LENGTH: Final = 20
_SENSORS: Final = {"dieedge": "edge"}


def concise_cards(lines: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Index and keys of each row; a second row of a GPU comes on its own."""
    columns: list[str] = []
    index: int | None = None
    sensor = "edge"
    for line in lines:
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] in ("Device", "GPU") and len(cells) > 3:
            columns, index = cells, None
            if "IDs" in columns:
                columns.insert(columns.index("IDs") + 1, "GUID")
        if not columns:
            continue
        named = re.search(r"(?:Temp |\s)\((DieEdge|Edge|Junction|Memory|Hbm \d)\)", line[:200])
        if named is not None and index is None:
            sensor = _SENSORS.get(named.group(1).lower(), named.group(1).lower())
        if line.startswith("=") and index is not None:
            columns = []
        elif len(cells) == len(columns) and re.fullmatch(r"\d{1,6}", cells[0]):
            index = int(cells[0])
            yield index, _card(dict(zip(columns, cells, strict=True)), sensor)
        elif index is not None and len(cells) == 1 and 0 < len(cells[0]) < _NAME_LENGTH:
            yield index, {"card series": cells[0]}


def _card(row: dict[str, str], sensor: str) -> dict[str, str]:
    card = {_COLUMNS[name]: cell for name, cell in row.items() if name in _COLUMNS}
    model = re.match(r"\[(0x[0-9a-f]+) : ", row.get("[Model : Revision]", ""))
    if model is not None:
        card["card model"] = model.group(1)
    if "IDs" in row:
        card["device id"] = row["IDs"].rstrip(",")
    temperature = next((cell for name, cell in row.items() if name.startswith("Temp")), None)
    if temperature is not None:
        card[f"temperature (sensor {sensor}) (c)"] = temperature
    partitions = [part.strip() for part in row.get("Partitions", "").split(",")]
    return card | dict(zip(_PARTITIONS, partitions, strict=False))
