"""The condensed runs of a store: written with each document, and read all at once for a report."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from portagpu.reports.condensed.nodes import HEAD_BYTES, NodeRun, mark_of, node_of
from portagpu.reports.condensed.packed import Packed, pack
from portagpu.reports.history.database import CONDENSED, FORMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.reports.bundles.document import Document


def condensed_row(document: Document) -> dict[str, Any] | None:
    """The row of CONDENSED without its run, and the ``form`` itself; None for no run of a node."""
    found = node_of(document)
    if not isinstance(found, NodeRun):
        return None
    packed = pack(found)
    mark = mark_of(document.data[:HEAD_BYTES], len(document.data))
    return {"mark": mark, "form": packed.form, "own": packed.own, "numbers": packed.numbers}


def form_key(connection: sa.Connection, forms: dict[str, int], data: bytes) -> int:
    """The key of a form, which is added if it is new; ``forms`` are those that are known."""
    digest = hashlib.sha256(data).hexdigest()
    if digest not in forms:
        query = sa.select(FORMS.c.key).where(FORMS.c.digest == digest)
        key = connection.execute(query).scalar_one_or_none()
        if key is None:
            made = sa.insert(FORMS).values(digest=digest, data=data).returning(FORMS.c.key)
            key = connection.execute(made).scalar_one()
        forms[digest] = key
    return forms[digest]


def read_condensed(connection: sa.Connection) -> Iterator[tuple[int, str, Packed]]:
    """The key, the mark and the condensed form of each run that has one."""
    rows = connection.execute(
        sa.select(
            CONDENSED.c.run,
            CONDENSED.c.mark,
            CONDENSED.c.form,
            CONDENSED.c.own,
            CONDENSED.c.numbers,
        )
    ).all()
    # afterwards: another writer may have added some meanwhile
    forms = {row.key: row.data for row in connection.execute(sa.select(FORMS))}
    for run, mark, form, own, numbers in rows:
        yield run, mark, Packed(forms[form], own, numbers)
