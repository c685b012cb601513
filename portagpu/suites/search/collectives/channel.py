"""The link of rank 0 with the others, beside the collectives under test: sockets of one machine.

Rank 0 listens on a free port, and publishes it once in the group's store. Messages are JSON.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import LIMITS
from portagpu.suites.search.busy import watch_world
from portagpu.suites.search.difference import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.runs.world import Rank

_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.002


class RankDidNotAnswer(RuntimeError):
    """A rank said nothing in time."""

    kind: Final = Kind.HANG


class RankEnded(RuntimeError):
    """A rank closed its end of the link, as its process does when it ends."""

    kind: Final = Kind.DEATH


def _key(number: int) -> str:
    return f"portagpu/suites/search/collectives/{number}"


def _store() -> Any:
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    return group.get_group_store()


@dataclass(slots=True)
class Leader:
    """The end of rank 0."""

    followers: dict[int, Connection] = field(default_factory=dict)

    @classmethod
    def meet(cls, rank: Rank, number: int) -> Leader:
        """Wait for all other ranks. ``number`` is the same on every rank, and used once."""
        with Listener((_HOST, 0), backlog=rank.world) as listener:
            _store().set(_key(number), str(listener.address[1]))
            found = cls()
            socket = listener._listener._socket  # type: ignore[attr-defined]
            watch = watch_world(LIMITS.meet_s)
            while len(found.followers) < rank.world - 1:
                if not watch.wait(lambda pause_s: bool(wait([socket], pause_s))):
                    raise RankDidNotAnswer(f"not all ranks came within {LIMITS.meet_s:g} s")
                connection = listener.accept()
                found.followers[json.loads(connection.recv_bytes())] = connection
        return found

    def tell(self, message: Any) -> None:
        """Send a message to everyone."""
        text = json.dumps(message).encode()
        for each in self.followers.values():
            each.send_bytes(text)

    def answers(self, patience_s: float, after: Callable[[], None]) -> dict[int, Any]:
        """What each rank says, by its number; ``after`` is called once if one takes that long.

        Raises RankDidNotAnswer after ``Limits.answer_s``, and RankEnded.
        """
        watch = None
        found: dict[int, Any] = {}
        while len(found) < len(self.followers):
            left = {link: each for each, link in self.followers.items() if each not in found}
            ready = wait(list(left), patience_s if watch is None else watch.pause_s)
            if not ready and watch is None:
                # a right program takes less than to begin this
                watch = watch_world(max(0.0, LIMITS.answer_s - patience_s))
                after()
            elif not ready and watch is not None and watch.over:
                missing, limit_s = ", ".join(map(str, sorted(left.values()))), LIMITS.answer_s
                raise RankDidNotAnswer(f"rank {missing} did not answer within {limit_s:g} s")
            for link in ready:
                try:
                    found[left[link]] = json.loads(link.recv_bytes())  # type: ignore[index, union-attr]
                except EOFError:
                    raise RankEnded(f"rank {left[link]} ended") from None  # type: ignore[index]
        return found

    def close(self) -> None:
        """Let the others go."""
        for each in self.followers.values():
            each.close()


def follow(rank: Rank, number: int) -> Connection:
    """The end of another rank."""
    store, watch = _store(), watch_world(LIMITS.meet_s)
    # the file's own wait polls in whole seconds
    while not store.check([_key(number)]):
        if watch.over:
            raise RankDidNotAnswer(f"rank 0 did not publish its port within {LIMITS.meet_s:g} s")
        time.sleep(_POLL_S)
    link = Client((_HOST, int(store.get(_key(number)))))
    link.send_bytes(json.dumps(rank.rank).encode())
    return link
