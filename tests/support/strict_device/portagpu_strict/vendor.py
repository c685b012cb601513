"""What is known of the vendor ``strictmaker``: its text for exhausted memory."""

from __future__ import annotations

from typing import Final

from portagpu.facts.vendors import Vendor

VENDOR: Final = Vendor(name="strictmaker", out_of_memory=("has no room for",))
