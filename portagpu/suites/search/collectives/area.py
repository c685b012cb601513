"""The area of collectives: how programs are drawn, and how rank 0 and the others run them.

Rank 0 tells every program to the others over sockets. Each rank runs it beside the model, which
knows what all ranks have, and reports what was wrong. Errors are reports too. After an error of one
rank the groups are out of step, and new ones are made. The default group cannot be: after an error
in it no other program is run, and the same one is as it was.
"""

from __future__ import annotations

import gc
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import LIMITS
from portagpu.suites.search.area import Area
from portagpu.suites.search.collectives.judge import difference
from portagpu.suites.search.difference import raised

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.collectives.channel import Leader
    from portagpu.suites.search.collectives.runner import Group
    from portagpu.suites.search.programs import Program, Runners


class _Collectives(Area):
    wait_s = LIMITS.group_s

    def __init__(self, ranks: int) -> None:
        self.name = f"collectives-{ranks}"
        self.ranks = ranks
        self._number = 0
        self._leader: Leader | None = None
        self._groups: dict[str, Group] = {}
        self._kept: dict[str, str] = {}
        """Differences of programs in which a rank waited in vain, which takes long: they are
        not run again."""
        self._is_over = False
        """Whether the default group is broken, so that no other program can run."""

    def load(self) -> None:
        from portagpu.suites.search.collectives import drawing, runner  # noqa: F401 - for ranks forked then

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.collectives.drawing import programs

        return programs(gpu)

    def calls(self) -> Runners:
        from portagpu.suites.search.collectives.runner import RUNNERS

        return RUNNERS

    def difference(self, rank: Rank, program: Program) -> str:
        leader = self._joined(rank)
        text = json.dumps(program)
        if self._is_over or text in self._kept:
            return self._kept.get(text, "")
        leader.tell(program)
        reports = {0: self._report(rank, program)}
        try:
            reports |= leader.answers(LIMITS.group_s, lambda: self._abandon(rank, program))
        except RuntimeError as error:
            rank.broke_group = True
            self._kept[text] = raised(error)
            self._is_over = True
            raise
        found = difference(reports)
        every = reports.values()
        if any(each["raised"] for each in every):
            # the groups are out of step: new ones for the next program
            self._abandon(rank, program)
            self._is_over = _uses_default(program)
            if self._is_over or any(each["raised"] and each["raised"][2] for each in every):
                self._kept[text] = found
            leader.tell("over" if self._is_over else "drop")
        elif found:
            leader.tell("seen")
        return found

    def follow(self, rank: Rank) -> None:
        from portagpu.suites.search.collectives import channel

        link = channel.follow(rank, self._number)
        self._number += 1
        while (told := json.loads(link.recv_bytes())) is not None:
            if isinstance(told, str):
                rank.broke_group |= told == "over"
                if told == "drop":
                    self._drop_groups(rank)
                continue
            program = [(name, given) for name, given in told]
            report = self._report(rank, program)
            link.send_bytes(json.dumps(report).encode())
            # rank 0 always says that it has seen a difference, unless it hangs
            if report["wrong"] and not link.poll(LIMITS.group_s):
                self._abandon(rank, program)
        link.close()
        self._drop_groups(rank)

    def end(self, rank: Rank) -> None:
        leader = self._joined(rank)
        leader.tell(None)
        leader.close()
        self._leader = None
        self._kept, self._is_over = {}, False
        self._drop_groups(rank)

    def _joined(self, rank: Rank) -> Leader:
        """The link with the other ranks, which are met before the first program."""
        if self._leader is None:
            from portagpu.suites.search.collectives.channel import Leader

            self._leader = Leader.meet(rank, self._number)
            self._number += 1
        return self._leader

    def _report(self, rank: Rank, program: Program) -> dict[str, Any]:
        """Run the program on this rank. After an error its groups are gone.

        So the others' calls end at once, and not after ``Limits.group_s``.
        """
        from portagpu.suites.search.collectives.runner import Runner, make_groups

        if not self._groups:
            self._groups = make_groups(rank, LIMITS.group_s)
        # as JSON has it, on rank 0 too
        text = json.dumps(asdict(Runner(rank, self._groups).run(program)))
        report: dict[str, Any] = json.loads(text)
        if report["raised"]:
            self._abandon(rank, program)
        return report

    def _abandon(self, rank: Rank, program: Program) -> None:
        """Close the connections of the program's groups: who waits for this rank gets an error.

        The default group has a limit of its own, which is longer than that of a program.
        """
        import torch.distributed as dist

        self._drop_groups(rank)
        if _uses_default(program) and not rank.broke_group:
            rank.broke_group = True
            dist.destroy_process_group()

    def _drop_groups(self, rank: Rank) -> None:
        """Destroy the groups of the programs, which closes their connections."""
        import torch.distributed as dist

        groups, self._groups = self._groups, {}
        for each in groups.values():
            if each.handle is not None and rank.rank in each.ranks:
                dist.destroy_process_group(each.handle)
        if groups:
            # works and errors that stand in cycles hold connections open
            del each
            groups.clear()
            gc.collect()


def _uses_default(program: Program) -> bool:
    """Whether the program has calls in the default group, which cannot be made again."""
    return any(given.get("group") == "default" for _, given in program)


TWO: Final = _Collectives(2)
THREE: Final = _Collectives(3)
FOUR: Final = _Collectives(4)
EIGHT: Final = _Collectives(8)
