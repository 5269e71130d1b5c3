"""Runs programs of the network configuration (flannel's `extension`), where the operator of the node allows it.

The one place that starts programs: with limits, and without a shell. What shall be run is decided by the backend, as
hooks: their commands run side by side, and what has failed is tried again later. The file `dataplane.hooks` in
--state-dir has the hooks that were put, so that a restart knows which to take back.
"""

import asyncio
import os
import signal
from asyncio.subprocess import STDOUT, Process
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.formats.shell_words import expand_words, split_words
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.events import Event, NodeEventKind
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.objects import HOOK, Hook, KernelObject, Plan, Verb
from flannelette.services.runtime.older_state import rows
from flannelette.services.runtime.state import Record, RecordFile, UnreadableState

_MOST_OUTPUT: Final = 64 * 1024
"""Bytes that are kept; the rest is read and thrown away, so that the program does not wait."""
_END_SECONDS: Final = 2.0
"""Seconds from SIGTERM to SIGKILL."""
_LINGER_SECONDS: Final = 0.2
"""Seconds for output that is still in the pipe when the program has ended: what it left running may hold the pipe
open."""


@frozen
class CommandResult:
    """What became of a run."""

    error: str
    """Why it failed; empty: exit status 0."""
    output: str = ""
    """stdout and stderr together, without blanks around, as far as it is kept."""
    is_cut: bool = False
    """There was more output."""


async def run_program(argv: Sequence[str], variables: dict[str, str], stdin: str, seconds: float) -> CommandResult:
    """Runs a program with our environment and these variables, in a process group of its own, until it ends.

    After so many seconds, and when this is cancelled, the group is ended; what the program itself leaves running in
    the background stays. Never raises but for a cancellation.
    """
    try:
        with os.fdopen(os.memfd_create("stdin"), "wb", 0) as source, _Output() as pipe:
            source.write(stdin.encode(errors="replace"))
            source.seek(0)
            with pipe.sender as stdout:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    env=os.environ | variables,
                    stdin=source,
                    stdout=stdout,
                    stderr=STDOUT,
                    start_new_session=True,
                )
            status = await _wait(process, seconds)
            await pipe.ended(_LINGER_SECONDS)
    except (OSError, ValueError) as error:  # ValueError: a NUL in a word
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return CommandResult(f"cannot run {argv[0]}: {reason}")
    output = pipe.kept.decode(errors="replace").strip()
    return CommandResult(_error(status, seconds), output, pipe.is_cut)


async def _wait(process: Process, seconds: float) -> int | None:
    """The exit status; None: it had no end by itself."""
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        return None
    finally:
        if process.returncode is None or process.returncode == -signal.SIGTERM:
            _signal(process, signal.SIGKILL)  # also children of one that has obeyed SIGTERM


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _error(status: int | None, seconds: float) -> str:
    if status is None:
        return f"ended because it ran longer than {seconds:g} s"
    if status < 0:
        return f"ended by signal {-status}"
    return f"exit status {status}" if status else ""


class _Output:
    """A pipe that is emptied as data come."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.is_cut = False
        self._descriptor, sender = os.pipe2(os.O_CLOEXEC)
        self.sender = os.fdopen(sender, "wb", 0)
        """The end for the program."""
        self._end = asyncio.Event()
        os.set_blocking(self._descriptor, False)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.sender.close()
        os.close(self._descriptor)

    async def ended(self, seconds: float) -> None:
        """Returns once every writer has closed the pipe, and after so many seconds at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _MOST_OUTPUT)
            if not data:
                self._end.set()
                asyncio.get_running_loop().remove_reader(self._descriptor)
            room = _MOST_OUTPUT - len(self.kept)
            self.kept += data[:room]
            self.is_cut = self.is_cut or len(data) > room


_KIND: Final = "dataplane.hooks"
_KEYS: Final = ("subject", "put", "delete", "stdin")


class HookFile:
    """The file; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.file = RecordFile(path, _KIND, older=rows)
        self._records: list[Record] = []

    def read(self) -> list[Hook]:
        """The hooks, each marked as an earlier process's; without those that cannot be read."""
        hooks = []
        for record in self.file.read():
            try:
                hooks.append(_hook(record.json()))
                self._records.append(record)
            except (UnreadableState, ValueError, KeyError, TypeError, InvalidInput) as error:
                self.file.reject(error)
        return hooks

    def write(self, hooks: Iterable[Hook]) -> None:
        """Replaces the file. A failure is logged, and stops nothing."""
        records = [_record(hook) for hook in hooks]
        if records != self._records and self.file.write(records):
            self._records = records


def _record(hook: Hook) -> Record:
    row = {key: getattr(hook, key) for key in _KEYS}
    return Record.of_json(hook.subject, {**row, "environment": dict(hook.environment)})


def _hook(row: dict[str, Any]) -> Hook:
    """Raises KeyError, TypeError, ValueError, InvalidInput for what is none."""
    texts = [row[key] for key in _KEYS]
    environment = row["environment"]
    if not isinstance(environment, dict):
        raise TypeError("environment")
    subject, put, delete, stdin = map(_text, texts)
    for command in (put, delete):
        split_words(command, "a command")
    pairs = tuple((_text(key), _text(value)) for key, value in environment.items())
    return Hook(subject, put, delete, pairs, stdin, is_earlier=True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # half of a surrogate pair, which JSON may have and no message
    return value


ALLOW: Final = "--allow-extension-commands"
_PRE: Final = "PreStartupCommand"
_AT_ONCE: Final = 8
"""Commands that may run at the same time."""
_PATIENCE_SECONDS: Final = 1.0
"""So long a plan waits for a command to end; then the others' answers count, and the rest comes later."""
_FIRST_RETRY_SECONDS: Final = 5.0
_LAST_RETRY_SECONDS: Final = 60.0
_MOST_DELETIONS: Final = 5
"""Attempts to delete a hook whose command fails: then it counts as deleted."""
_NODE: Final = (HOOK, "")
_MOST_TEXT: Final = 1000
"""Characters of output in an event, the last ones."""


@dataclass(slots=True)
class Job:
    """A command that is running, or waits for its turn."""

    verb: Verb
    hook: Hook
    task: asyncio.Task[None]
    is_awaited: bool = True
    """Whether a plan waits for its end."""


@frozen
class FailedCommand:
    """A command that has failed."""

    work: Hashable
    """What was run; other work of the same key is run at once."""
    reason: str
    attempts: int
    due: float
    """When it is tried again; the loop's time."""


class HookRunner:
    """The `PartActuator` of hooks, and the `Programs` of the backend. Nothing is done before `run` runs.

    A command that hangs delays no other: a plan returns without it, and `changed` is called when it has ended.
    """

    kinds: Final = frozenset({HOOK})

    def __init__(self, *, is_allowed: bool, seconds: float, path: Path | None) -> None:
        self._note: Callable[[Event], None] = lambda event: None
        self._changed: Callable[[], None] = lambda: None
        self._is_allowed = is_allowed
        self._seconds = seconds
        self._file = HookFile(path if is_allowed else None)
        self._done: dict[Hashable, Hook] = {hook.key: hook for hook in self._file.read()}
        self._jobs: dict[Hashable, Job] = {}
        self._failures: dict[Hashable, FailedCommand] = {}
        self._outputs: dict[str, str] = {}
        self._output_task: tuple[str, asyncio.Task[None]] | None = None
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._group: asyncio.TaskGroup | None = None
        self._is_running = asyncio.Event()

    async def run(self, note: Callable[[Event], None], changed: Callable[[], None]) -> None:
        """Owns the running commands until cancelled. `note` is told what they print, `changed` that a late one has
        ended.
        """
        self._note, self._changed = note, changed
        async with asyncio.TaskGroup() as self._group:
            self._is_running.set()
            await asyncio.Event().wait()

    @property
    def problem(self) -> str:
        """Why the commands cannot be kept on disk for the next start; empty: they can."""
        return self._file.file.problem

    def require_permission(self, backend: str) -> None:
        """See Programs."""
        if not self._is_allowed:
            raise InvalidInput(
                f"backend {backend} has this node run commands of the network configuration, with all rights of the "
                f"dataplane: start it with {ALLOW} if all who may write the configuration may do that"
            )

    async def output(self, command: str) -> str:
        """See Programs."""
        if command in self._outputs:
            return self._outputs[command]
        failure = self._failures.get(_PRE)
        if failure is not None and failure.work == command and _now() < failure.due:
            raise Unavailable(failure.reason)
        await self._is_running.wait()
        if self._output_task is None or self._output_task[0] != command or self._output_task[1].done():
            self._output_task = command, self._start(self._read_output(command))
        await asyncio.wait({self._output_task[1]}, timeout=_PATIENCE_SECONDS)
        if command in self._outputs:
            return self._outputs[command]
        failure = self._failures.get(_PRE)
        raise Unavailable(failure.reason if failure and failure.work == command else f"{_PRE} is running")

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """See PartActuator: what was put, by this process or an earlier one, and not deleted."""
        return Contents(frozenset(), frozenset(self._done.values()))

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """See PartActuator."""

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See PartActuator. The node's own hook is put first and deleted last; without it no other is put."""
        put = [item for item in plan.put if isinstance(item, Hook)]
        delete = [item for item in plan.delete if isinstance(item, Hook)]
        await self._is_running.wait()
        # Written before a command is run: what was half done is undone too.
        self._file.write([*self._done.values(), *(hook for hook in put if hook.key not in self._done)])
        failures: dict[KernelObject, str] = {}
        failures.update(await self._run("replace", _of_node(put), _PATIENCE_SECONDS))
        reason = next(iter(failures.values()), "") or self._node_failure
        if reason:
            failures.update(dict.fromkeys(_of_peers(put), f"waits for {reason}"))
        else:
            failures.update(await self._run("replace", _of_peers(put), _PATIENCE_SECONDS))
        failures.update(await self._run("del", _of_peers(delete), _PATIENCE_SECONDS))
        running = [job.task for job in self._jobs.values()]
        last = _of_node(delete)
        if last and running:
            await asyncio.wait(running)  # each has a limit of time
        failures.update(await self._run("del", last, None))
        if last:
            self._outputs.clear()  # what PreStartupCommand has prepared is gone
        self._file.write(self._done.values())
        return failures

    async def _run(self, verb: Verb, hooks: Iterable[Hook], patience: float | None) -> dict[KernelObject, str]:
        """Runs the commands, until all have ended or for so many seconds none has; what failed or is not done."""
        failures: dict[KernelObject, str] = {}
        jobs: dict[Hook, Job] = {}
        for hook in hooks:
            failure = self._failures.get(hook.key)
            if failure is not None and failure.work == (verb, hook) and _now() < failure.due:
                failures[hook] = failure.reason
            else:
                jobs[hook] = self._job(verb, hook)
        pending = {job.task for job in jobs.values()}
        while pending:
            done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
        for hook, job in jobs.items():
            failure = self._failures.get(hook.key)
            if not job.task.done():
                job.is_awaited = False
                failures[hook] = f"{hook.names()[verb == 'del']} is running"
            elif failure is not None or job.task.cancelled():
                failures[hook] = failure.reason if failure else "the service was stopped meanwhile"
        return failures

    def _job(self, verb: Verb, hook: Hook) -> Job:
        """The job that does it: the one that is under way, or a new one after whatever is under way for its key."""
        before = self._jobs.get(hook.key)
        if before is None or (before.verb, before.hook) != (verb, hook):
            task = self._start(self._carry_out(verb, hook, before.task if before else None))
            self._jobs[hook.key] = Job(verb, hook, task)
        job = self._jobs[hook.key]
        job.is_awaited = True
        return job

    async def _carry_out(self, verb: Verb, hook: Hook, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        name = hook.names()[verb == "del"]
        command = hook.delete if verb == "del" else hook.put
        outcome = await self._outcome(command, name, dict(hook.environment), hook.stdin)
        about = f" for {hook.subject}" if hook.subject else ""
        is_done = self._judge(hook.key, (verb, hook), f"{name}{about}", outcome)
        if verb == "replace":
            # What has failed may have done a part: it is run again, or deleted, as an earlier process's.
            undone = self._done.get(hook.key, hook._replace(is_earlier=True))
            self._done[hook.key] = hook if is_done else undone
        elif verb == "del" and (is_done or self._failures[hook.key].attempts >= _MOST_DELETIONS):
            self._failures.pop(hook.key, None)
            self._done.pop(hook.key, None)
        job = self._jobs[hook.key]
        if job.task is asyncio.current_task():
            del self._jobs[hook.key]
            if not job.is_awaited:
                self._changed()

    async def _read_output(self, command: str) -> None:
        outcome = await self._outcome(command, _PRE, {}, "")
        if outcome.is_cut:
            outcome = CommandResult("it prints more than a lease can hold", outcome.output)
        if self._judge(_PRE, command, _PRE, outcome):
            self._outputs[command] = outcome.output
        self._changed()

    async def _outcome(self, command: str, where: str, variables: dict[str, str], stdin: str) -> CommandResult:
        """The line after `stdin` ends it, as flannel writes it."""
        if not self._is_allowed:
            return CommandResult(f"not allowed without {ALLOW}")
        argv = expand_words(split_words(command, where), os.environ | variables)
        if not argv:
            return CommandResult("")
        async with self._room:
            return await run_program(argv, variables, f"{stdin}\n", self._seconds)

    def _judge(self, key: Hashable, work: Hashable, what: str, outcome: CommandResult) -> bool:
        """Whether the command has succeeded; tells what is worth it, and notes when it is tried again."""
        shown = "".join(sign if sign.isprintable() else " " for sign in outcome.output[-_MOST_TEXT:])
        before = self._failures.pop(key, None)
        if not outcome.error:
            if shown or before:
                self._note(Event(NodeEventKind.COMMAND, f"{what}: {shown or 'done'}", "network configuration"))
            return True
        attempts = before.attempts + 1 if before is not None and before.work == work else 1
        reason = f"{what.partition(' ')[0]}: {outcome.error}{': ' if shown else ''}{shown}"
        pause = min(_FIRST_RETRY_SECONDS * 2 ** (attempts - 1), _LAST_RETRY_SECONDS)
        self._failures[key] = FailedCommand(work, reason, attempts, _now() + pause)
        if before is None or before.reason != reason:
            told = f"{what} failed, {outcome.error}{': ' if shown else ''}{shown}"
            self._note(Event(NodeEventKind.COMMAND, told, "network configuration"))
        return False

    @property
    def _node_failure(self) -> str:
        """Why the node's own hook is not put."""
        failure, job = self._failures.get(_NODE), self._jobs.get(_NODE)
        if job is not None and job.verb == "replace":
            return f"{job.hook.names()[0]}, which is running"
        return failure.reason if failure is not None else ""

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None  # noqa: S101 - whoever comes here has waited for `run`
        return self._group.create_task(work)


def _of_node(hooks: Iterable[Hook]) -> list[Hook]:
    return [hook for hook in hooks if not hook.subject]


def _of_peers(hooks: Iterable[Hook]) -> list[Hook]:
    return [hook for hook in hooks if hook.subject]


def _now() -> float:
    return asyncio.get_running_loop().time()
