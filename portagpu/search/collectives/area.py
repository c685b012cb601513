"""The area of collectives: how programs are drawn, and how rank 0 and the others run them.

Rank 0 tells every program to the others over sockets. Each rank runs it beside the model, which
knows what all ranks have, and reports what was wrong. Errors are reports too. After an error of one
rank the groups are out of step: then no other program is run, and the same one is as it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from portagpu.search.area import Area
from portagpu.search.collectives.judge import difference

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from portagpu.contract import Backend
    from portagpu.search.collectives.channel import Leader
    from portagpu.search.collectives.runner import Group
    from portagpu.search.programs import Program
    from portagpu.world import Rank

TIMEOUT_S: Final = 8.0
"""Of the groups: how long a rank waits for another that is not there, where the library can."""


class _Collectives(Area):
    name: ClassVar[str] = "collectives"
    ranks: ClassVar[int] = 4

    def __init__(self) -> None:
        self._number = 0
        self._leader: Leader | None = None
        self._groups: dict[str, Group] = {}
        self._broken: dict[str, str] = {}
        """The program that put the ranks out of step, and its difference."""

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.search.collectives.drawing import programs

        return programs(gpu)

    def difference(self, rank: Rank, program: Program) -> str:
        from portagpu.search.collectives.runner import Runner

        leader = self._joined(rank)
        text = json.dumps(program)
        if self._broken:
            return self._broken.get(text, "")
        leader.tell(program)
        reports = {0: asdict(Runner(rank, self._groups).run(program))}
        try:
            reports |= leader.answers()
        except RuntimeError as error:
            self._broken[text] = str(error)
            raise
        found = difference(reports)
        if any(each["raised"] for each in reports.values()):
            rank.broke_group = True
            self._broken[text] = found
        return found

    def follow(self, rank: Rank) -> None:
        from portagpu.search.collectives import channel
        from portagpu.search.collectives.runner import Runner

        link = channel.follow(rank, self._number)
        self._number += 1
        self._make_groups(rank)
        while (program := json.loads(link.recv_bytes())) is not None:
            report = Runner(rank, self._groups).run([(name, given) for name, given in program])
            rank.broke_group |= report.raised is not None
            link.send_bytes(json.dumps(asdict(report)).encode())
        link.close()
        self._leave(rank)

    def end(self, rank: Rank) -> None:
        leader = self._joined(rank)
        leader.tell(None)
        leader.close()
        self._leader = None
        self._broken = {}
        self._leave(rank)

    def _joined(self, rank: Rank) -> Leader:
        """The link with the other ranks, which are met before the first program."""
        if self._leader is None:
            from portagpu.search.collectives.channel import Leader

            self._leader = Leader.meet(rank, self._number)
            self._number += 1
            self._make_groups(rank)
        return self._leader

    def _make_groups(self, rank: Rank) -> None:
        from portagpu.search.collectives.runner import make_groups

        self._groups = make_groups(rank.world, timedelta(seconds=TIMEOUT_S))

    def _leave(self, rank: Rank) -> None:
        """Destroy the groups of the round; groups out of step end with their process."""
        import torch.distributed as dist

        groups, self._groups = self._groups, {}
        if rank.broke_group:
            return
        for each in groups.values():
            if each.handle is not None and rank.rank in each.ranks:
                dist.destroy_process_group(each.handle)


AREA: Final = _Collectives()
