"""The helper process of :mod:`portagpu.runs.world`: imports torch, runs nothing, forks ranks.

It receives requests from the client, forks the ranks, and sends their steps and outcomes. It also
forks other programs that need torch. The end of the channel ends every rank and the server; the end
of the server ends those programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import selectors
import signal
import sys
import termios
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.files import Scratch
from portagpu.base.patience import LIMITS, PATIENCE, Starvation
from portagpu.base.subprocesses.channel import (
    BrokenMessage,
    Channel,
    parent_channel,
)
from portagpu.base.subprocesses.fork import Become, fork, run_main, take_status
from portagpu.base.subprocesses.start import (
    adopt_orphans,
    die_with_parent,
    end_strays,
    has_ended,
    kill_group,
    signal_name,
    wake_at_parents_end,
)
from portagpu.base.text import error_line
from portagpu.devices.registry import plugin, resolve
from portagpu.runs.world.client import fork_ahead
from portagpu.runs.world.rank import COMPILER, RankOutputs, load_function, run_rank

if TYPE_CHECKING:
    from portagpu.base.patience import Meter, Watch

_TRACE_S: Final = 0.5
_TICK_S: Final = 0.2
"""How often to look for ended ranks and for the client."""
_IDLE_S: Final = 1.0
_OUTPUT_BYTES: Final = 4000


@dataclass(slots=True)
class _Child:
    outputs: RankOutputs
    pid: int
    channel: Channel
    """The server's end, which only reads."""
    steps: list[str] = field(default_factory=list)
    state: str = ""
    value: Any = None
    error: str = ""
    where: str = ""
    in_collective: bool = False
    ready: bool = False
    """Whether it has opened its device and joined the group."""
    returned: bool = False
    """Whether its function returned. The rank then waits for the others and leaves the group."""
    ended: bool = False
    """Whether the process is gone and was reaped."""

    @property
    def rank(self) -> int:
        return self.outputs.rank

    @property
    def open(self) -> bool:
        """Whether the server still reads its channel."""
        return self.channel.reader >= 0


class _World:
    """The ranks of one request, from fork to end."""

    def __init__(self, request: dict[str, Any], control: Channel, kept: set[int]) -> None:
        self.request = request
        self.control = control
        self.kept = kept
        self.scratch = Scratch("ranks")
        self.children: list[_Child] = []
        self.failures: list[_Child] = []
        self.lost = frozenset(request["lost"])
        self.client = os.getppid()
        self.abandoned = False
        self.compiler = False
        """Whether a rank imported torch's compiler."""
        self.heard = False
        """Whether a rank has announced a step or that it is alive since it was last asked."""
        self.meter: Meter
        """Of the ranks and what they start, as soon as there are some."""
        self.world: Watch
        """The limit of all, which begins again when all ranks are ready."""
        self.silence: Watch
        """The limit since the last sign of life."""

    def run(self) -> dict[str, Any]:
        try:
            self._fork()
            self._watch()
            hung, others = self.silence.starved, self.world.starved
            self._end_remaining()
            ranks = [
                _outcome(child, hung if child.state == "hung" else others)
                for child in self.children
            ]
            return {"ranks": ranks, "culprit": self.culprit}
        finally:
            self._kill()
            self.scratch.remove()

    def _fork(self) -> None:
        server = os.getpid()
        pipes = [os.pipe() for _ in range(self.request["world"])]
        for rank, (reader, writer) in enumerate(pipes):
            outputs = RankOutputs(rank, Channel(-1, writer), self.scratch.path)
            child = _Child(outputs, os.fork(), Channel(reader, -1))
            if child.pid == 0:
                for other, (other_reader, other_writer) in enumerate(pipes):
                    with contextlib.suppress(OSError):
                        os.close(other_reader)
                        if other != rank:
                            os.close(other_writer)
                run_rank(self.request, outputs, server, self.control)
            os.set_blocking(reader, False)
            self.children.append(child)
        for _, writer in pipes:
            os.close(writer)
        self.meter = PATIENCE.meter(*(child.pid for child in self.children))
        self.world = self.meter.watch(float(self.request["most_s"]))
        self.silence = self.meter.watch(float(self.request["timeout_s"]))

    def _watch(self) -> None:
        """Read until every rank is gone, the end of a limit, or the grace after a failure."""
        start = self.meter.watch(self.request["start_s"] + self.silence.limit_s)
        limits = [start]
        grace: Watch | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self.control.reader, selectors.EVENT_READ, None)
            for child in self.children:
                selector.register(child.channel.reader, selectors.EVENT_READ, child)
            while any(not (child.ended or child.rank in self.lost) for child in self.children):
                left = min(each.left_s for each in (*limits, grace) if each is not None)
                if left <= 0:
                    return
                closing = any(not (child.open or child.ended) for child in self.children)
                for key, _ in selector.select(min(left, _TICK_S / 20 if closing else _TICK_S)):
                    child = key.data
                    if child is None:
                        if _is_closed(self.control.reader):
                            self.abandoned = True
                            return
                        selector.unregister(self.control.reader)
                    else:
                        self._read_messages(child, selector)
                self._reap_ended(selector)
                if start in limits and all(child.ready or child.ended for child in self.children):
                    limits = [self.world, self.silence]
                    self.world.begin_again()
                    self.silence.begin_again()
                if self.heard and not self.failures:
                    self.silence.begin_again()
                self.heard = False
                if os.getppid() != self.client:
                    self.abandoned = True
                    return
                if self.failures:
                    grace = grace or self.meter.watch(LIMITS.grace_s)
                    if all(child.ended or child.returned for child in self.children):
                        return

    def _read_messages(self, child: _Child, selector: selectors.BaseSelector) -> bool:
        """Handle the messages that are there; False without any. Close the channel at its end."""
        try:
            more = child.channel.fill()
        except BlockingIOError:
            return False
        try:
            while (message := child.channel.next_buffered()) is not None:
                self._handle_message(child, message)
        except BrokenMessage as error:
            more = False
            if not child.state:
                child.state, child.error = "raised", f"broke: {error}"
                self._record_failure(child)
        if not more:
            self._stop_reading(child, selector)
        return more

    @staticmethod
    def _stop_reading(child: _Child, selector: selectors.BaseSelector) -> None:
        selector.unregister(child.channel.reader)
        child.channel.close()

    def _handle_message(self, child: _Child, message: dict[str, Any]) -> None:
        if "step" in message or "alive" in message:
            self.heard = True
        if "alive" in message:
            return
        if "step" in message:
            step, data = str(message["step"]), message.get("data")
            child.steps.append(step)
            known = data if isinstance(data, dict) else {}
            self.control.send({"rank": child.rank, "step": step, "data": known})
        elif "raised" in message:
            child.state, child.error = "raised", str(message["raised"])
            child.in_collective = bool(message.get("in_collective"))
            self._record_failure(child)
        elif "ready" in message:
            child.ready = True
        elif "value" in message:
            child.returned, child.value = True, message["value"]
        elif "done" in message:
            child.state = "done"
            self.compiler |= bool(message.get("compiler"))
        else:
            raise BrokenMessage(message)

    def _record_failure(self, child: _Child) -> None:
        if child.rank in self.lost:
            child.state = "lost"
        else:
            self.failures.append(child)

    def _reap_ended(self, selector: selectors.BaseSelector) -> None:
        """Reap ended ranks, including one whose children still hold its pipe open."""
        for child in self.children:
            if child.ended or not has_ended(child.pid):
                continue
            while child.open and self._read_messages(child, selector):
                pass
            if child.open:
                self._stop_reading(child, selector)
            self._reap(child)

    def _reap(self, child: _Child) -> None:
        # its process group keeps its number while the rank is not yet reaped
        kill_group(child.pid)
        _, status = os.waitpid(child.pid, 0)
        child.ended = True
        if child.state:
            return
        child.state = "died"
        self._record_failure(child)
        child.where, _ = child.outputs.place_in_trace()
        if os.WIFSIGNALED(status):
            child.error = f"died of {signal_name(os.WTERMSIG(status))}"
        else:
            child.error = f"ended with status {os.WEXITSTATUS(status)} before it returned"
        if child.where:
            child.error += f" in {child.where}"

    def _end_remaining(self) -> None:
        """Record where the remaining ranks stand, and their state."""
        left = [child for child in self.children if not child.ended]
        staying = [child for child in self.children if child.rank not in self.lost]
        traced = [child for child in staying if not child.ended]
        for child in traced:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR1)
        if traced:
            self.meter.watch(_TRACE_S).sleep()
        waiting = not all(child.returned for child in staying)
        for child in left:
            if not child.state and child.returned and waiting:
                child.state = "done"
            if not child.state and child.rank in self.lost:
                child.state = "lost"
            if not child.state:
                child.state = "stopped" if self.failures else "hung"
            child.where, child.in_collective = child.outputs.place_in_trace()
            if child.state == "stopped":
                child.error = "was stopped, because another rank had failed"
            elif child.state == "hung":
                limit_s, most_s = self.request["timeout_s"], self.request["most_s"]
                child.error = f"did not finish within {limit_s:g} s"
                if most_s > limit_s:
                    child.error += f" of its last sign of life, or {most_s:g} s in all"
                if not child.ready:
                    within_s = limit_s + self.request["start_s"]
                    child.error = f"had not opened its device and joined within {within_s:g} s"

    @property
    def culprit(self) -> int | None:
        """The first rank with a failure of its own; among hung ranks, the one the others wait for.

        When a rank is gone, its peers raise inside their collective, often before the server sees
        its end. So a rank that died comes first, then one that raised outside a collective.
        """
        if self.failures:
            first = min(
                self.failures, key=lambda child: (child.state != "died", child.in_collective)
            )
            return first.rank
        hung = [child for child in self.children if child.state == "hung"]
        if len(hung) == 1:
            return hung[0].rank
        fewest = min((len(child.steps) for child in hung), default=0)
        slowest = [child for child in hung if len(child.steps) == fewest]
        if len(slowest) < len(hung):
            hung = slowest
        if len(hung) > 1:
            # those inside a collective wait; the one that is elsewhere is waited for
            elsewhere = [child for child in hung if not child.in_collective]
            hung = elsewhere or hung
        return hung[0].rank if len(hung) == 1 else None

    def _kill(self) -> None:
        for child in self.children:
            if not child.ended:
                kill_group(child.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)
                child.ended = True
            child.channel.close()
        end_strays(self.kept)


def _is_closed(descriptor: int) -> bool:
    """Whether a readable pipe is at its end: no process holds the other side."""
    waiting = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
    return int.from_bytes(waiting, sys.byteorder) == 0


def _outcome(child: _Child, starved: Starvation) -> dict[str, Any]:
    output = ""
    with contextlib.suppress(OSError):
        output = child.outputs.output_file.read_bytes()[-_OUTPUT_BYTES:].decode(errors="replace")
    return {
        "rank": child.rank,
        "state": child.state or "stopped",
        "value": child.value,
        "error": child.error,
        "where": child.where,
        "step": child.steps[-1] if child.steps else "",
        "output": "" if child.state == "done" else output,
        "starved": None if child.state in ("done", "lost") else asdict(starved),
    }


def main() -> int:
    """Serve requests until the client ends."""
    client = os.getppid()
    control = parent_channel()
    # stopped, it and its ranks would outlive the client; killed, it could not end what they started
    wake_at_parents_end()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        importlib.import_module("torch.distributed")
    except Exception as error:  # noqa: BLE001 - a torch that does not import is the answer
        control.send({"fatal": f"torch does not import: {error_line(error)}"})
        return 1
    try:
        control.send({"ready": True})
    except BrokenPipeError:
        return 0
    # what a rank's own children leave running becomes this process's, which ends it
    adopt_orphans()
    wanted: set[str] = set()
    kept: set[int] = set()
    while True:
        try:
            request = control.receive(_IDLE_S)
        except TimeoutError:
            # a process that the client forked may hold the channel open for longer than it lives
            if os.getppid() != client:
                return 0
            continue
        if request is None:
            return 0
        if "prepare" in request:
            _call_ahead(request, client)
            answer: dict[str, Any] = {"prepared": True}
        elif "fork" in request:
            answer = _fork_program(request["fork"], control, kept)
        elif "take" in request:
            kept.remove(request["take"])
            answer = {"status": take_status(request["take"])}
        elif _serve(request, control, wanted, kept):
            continue
        else:
            return 0
        try:
            control.send(answer)
        except BrokenPipeError:
            return 0


def _fork_program(request: dict[str, Any], control: Channel, kept: set[int]) -> dict[str, Any]:
    """Fork a child that runs a program for the client, and is ``kept`` until its status is taken.

    The child's own ranks come from a server that it forks before it runs anything.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    try:
        pid = fork(request, (control.reader, control.writer))
    except Become as become:
        raise Become(partial(_run_program, become), become.channel) from None
    if pid is not None:
        kept.add(pid)
    return {"forked": pid}


def _call_ahead(request: dict[str, Any], client: int) -> None:
    """Call what ranks that share a device should not each have to import; they report errors."""
    # nobody looks at the channel meanwhile, and no rank is left to end
    die_with_parent()
    if os.getppid() != client:
        os._exit(0)
    with contextlib.suppress(Exception, SystemExit):
        if plugin(resolve(request["backend"])).shared:
            load_function(request["prepare"])(**request["arguments"])
    wake_at_parents_end()
    gc.freeze()


def _prepare(name: str | None, function: str, wanted: set[str]) -> float:
    """Import what every rank needs, also the module of ``function`` if it is one of this package.

    On a device that ranks share (a CPU) import also the modules that are ``wanted``. A GPU's ranks
    import them themselves: should one open the device, a forked process could not use it.
    Return the seconds that the backend's start may take.

    The ranks report what is wrong.
    """
    start_s = 0.0
    with contextlib.suppress(Exception):
        found = plugin(resolve(name))
        start_s = max(0.0, float(found.start_s))
        found.prepare()
        if found.shared:
            for module in wanted:
                importlib.import_module(module)
    with contextlib.suppress(Exception):
        if function.startswith("portagpu."):
            load_function(function)
    return start_s


def _run_program(become: Become) -> None:
    fork_ahead(become.channel)
    become.program()


def _serve(request: dict[str, Any], control: Channel, wanted: set[str], kept: set[int]) -> bool:
    """Run one world and reply; False when the client is gone.

    ``wanted`` gets the modules that its ranks should not each have had to import; ``kept`` are
    children of this process that are none of its ranks.
    """
    imported = len(sys.modules)
    request["start_s"] = _prepare(request["backend"], request["function"], wanted)
    if not gc.get_freeze_count() or len(sys.modules) > imported:
        # else a collection in a rank writes to every object, and each page is copied
        gc.freeze()
    try:
        control.send({"start_s": request["start_s"]})
        world = _World(request, control, kept)
        outcome = world.run()
        if world.compiler:
            wanted.add(COMPILER)
        if not world.abandoned:
            control.send(outcome)
    except BrokenPipeError:
        return False
    except OSError as error:
        # no more processes, files or space: the world is gone, the next may work
        control.send({"fatal": f"{error.strerror or error}"})
        return True
    return not world.abandoned


if __name__ == "__main__":
    run_main(main)
