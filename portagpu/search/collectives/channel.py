"""The link of rank 0 with the others, beside the collectives under test: sockets of one machine.

Rank 0 listens on a free port, and publishes it once in the group's store. Messages are JSON.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import TYPE_CHECKING, Any, Final

from portagpu.search.difference import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.world import Rank

_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.002
JOIN_S: Final = 30.0
"""How long ranks may need to come: they may still open their devices."""
ANSWER_S: Final = 12.0
"""How long rank 0 waits for what the others saw of a program. A right one takes milliseconds."""


class RankDidNotAnswer(RuntimeError):
    """A rank said nothing in time."""

    kind: Final = Kind.HANG


class RankEnded(RuntimeError):
    """A rank closed its end of the link, as its process does when it ends."""

    kind: Final = Kind.DEATH


def _key(number: int) -> str:
    return f"portagpu/search/collectives/{number}"


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
            socket.settimeout(JOIN_S)
            while len(found.followers) < rank.world - 1:
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

        Raises RankDidNotAnswer after ANSWER_S.
        """
        end = time.monotonic() + ANSWER_S
        patient = True
        found: dict[int, Any] = {}
        while len(found) < len(self.followers):
            left = {link: each for each, link in self.followers.items() if each not in found}
            limit_s = patience_s if patient else max(0.0, end - time.monotonic())
            ready = wait(list(left), limit_s)
            if not ready and patient:
                patient = False
                after()
            elif not ready:
                missing = ", ".join(map(str, sorted(left.values())))
                raise RankDidNotAnswer(f"rank {missing} did not answer within {ANSWER_S:g} s")
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
    store, end = _store(), time.monotonic() + JOIN_S
    # the file's own wait polls in whole seconds
    while not store.check([_key(number)]):
        if time.monotonic() > end:
            raise RankDidNotAnswer(f"rank 0 did not publish its port within {JOIN_S:g} s")
        time.sleep(_POLL_S)
    link = Client((_HOST, int(store.get(_key(number)))))
    link.send_bytes(json.dumps(rank.rank).encode())
    return link
