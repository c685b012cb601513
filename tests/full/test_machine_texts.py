"""What operators paste of whole machines, and what `portagpu health` has to say of each text.

The texts and the answers are in ``tests/vendor_texts/machines``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.looped import looped
from tests.vendor_texts.test_machine_texts import TEXTS, found_in, judged, text_of

if TYPE_CHECKING:
    from pathlib import Path


ESCAPE: Final = "\x1b"


def broken(name: str) -> bool:
    return any(each.startswith("FAIL") for each in TEXTS[name].get("found", []))


@looped("name", [name for name in TEXTS if broken(name)])
def test_how_a_text_was_pasted_changes_nothing(name: str, tmp_path: Path) -> None:
    text = text_of(name)
    wanted = [each for each in TEXTS[name]["found"] if each.startswith("FAIL")]
    coloured = text.replace("\n", f"{ESCAPE}[0m\n{ESCAPE}[1m")
    quoted = "".join(f"> {line}\n" for line in text.splitlines())
    for form in (
        text.replace("\n", "\r\n").encode(),
        text.encode("utf-16"),
        coloured.encode(),
        quoted.encode(),
        text.rstrip("\n").encode(),
    ):
        path = tmp_path / "text.txt"
        path.write_bytes(form)
        every = found_in(judged(path))
        assert [each for each in wanted if each not in every] == [], form[:60]
