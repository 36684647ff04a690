"""Programs that wait for ever, by class, each with its verdict: an error at once, which names who waits where.

What a rank of two does is written as the lines of its function, with `other` for the other rank, `shared` for what both
have, and `alone` for what never comes. A mistake in such lines is another error, and fails the test. What cannot be
told from work, and what becomes of those who go on after the verdict (also by swallowing `GeneratorExit`, of which
Python complains when they are collected), is in `test_hangs.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import textwrap
from typing import Any

import pytest

import minitrain as mt

DEADLOCK, OWN, MISMATCH = mt.DeadlockError, mt.StrategyError, mt.CollectiveMismatchError
RECEIVES = r"rank 0 at .*: receive from rank 1.*(\n.*)*rank 1 at .*: receive from rank 0"


def both(what: str) -> str:
    """Return how an error says that both ranks wait for something of their own."""
    return rf"ranks 0 \({what}, .*\), 1 \({what}, .*\)"


PROGRAMS: dict[str, dict[str, tuple[type[Exception], str, str]]] = {
    "operations that nobody answers": {
        "two receives": (DEADLOCK, RECEIVES, "await model.receive(other)"),
        "another tag": (
            DEADLOCK,
            r"rank 0 at .*: receive from rank 1 \(.*\n.*rank 1 at .*: receive from rank 0 with tag 'b'",
            "if model.rank == 0:\n    await model.send(1, inp, tag='a')\n"
            "    await model.receive(1)\nelse:\n    await model.receive(0, tag='b')",
        ),
        "a barrier of all where one receives": (
            DEADLOCK,
            r"rank 0 at .*: barrier.*\n.*rank 1 at .*: receive from rank 0",
            "await (model.receive(0) if model.rank else model.barrier())",
        ),
        "a rank that has returned": (
            DEADLOCK,
            r"rank 1 at .*: receive from rank 0 .*\n.*finished: rank 0",
            "if model.rank: await model.receive(0)",
        ),
        "receives after barriers of other groups": (
            DEADLOCK,
            RECEIVES,
            "groups = [model.group([0, 1]), model.group([1, 0])]\n"
            "await model.barrier(group=groups[model.rank])\nawait model.receive(other)",
        ),
        "launched, awaited in the wrong place": (
            DEADLOCK,
            RECEIVES,
            "work = model.launch(model.receive(other))\nawait work\nawait model.send(other, inp)",
        ),
        "a ring of messages that are not buffered": (
            DEADLOCK,
            RECEIVES,
            "await model.receive(other, tag=1)\nawait model.send(other, inp, tag=1)",
        ),
        "other collectives": (
            MISMATCH,
            "same order; rank 0: barrier .*; rank 1: all_gather of layer 0",
            "weight, _ = model.load_weights(0, model.rank, 2)\n"
            "await (model.all_gather(weight, 0) if model.rank else model.barrier())",
        ),
        "one collective fewer": (
            DEADLOCK,
            r"rank 1 at .*: barrier.*\n.*finished: rank 0",
            "for _ in range(2 + model.rank): await model.barrier()",
        ),
        "an operation in a generator": (
            DEADLOCK,
            RECEIVES,
            "async def items():\n    yield await alone()\nasync for _ in items(): pass",
        ),
        "an operation in a context": (
            DEADLOCK,
            RECEIVES,
            "@contextlib.asynccontextmanager\nasync def held():\n    await alone()\n    yield\nasync with held(): pass",
        ),
    },
    "objects of asyncio": {
        "an event": (DEADLOCK, both("Event.wait"), "await asyncio.Event().wait()"),
        "a future": (DEADLOCK, both("a future"), "await asyncio.get_running_loop().create_future()"),
        "a lock taken twice": (
            DEADLOCK,
            both("Lock.acquire"),
            "lock = asyncio.Lock()\nasync with lock:\n    async with lock: pass",
        ),
        "a condition": (
            DEADLOCK,
            both("Condition.wait"),
            "condition = asyncio.Condition()\nasync with condition: await condition.wait()",
        ),
        "a semaphore of none": (DEADLOCK, both("Semaphore.acquire"), "await asyncio.Semaphore(0).acquire()"),
        "a barrier of tasks": (DEADLOCK, both("Condition.wait"), "await asyncio.Barrier(3).wait()"),
        "an empty queue": (DEADLOCK, both("Queue.get"), "await asyncio.Queue().get()"),
        "a full queue": (
            DEADLOCK,
            both("Queue.put"),
            "queue = asyncio.Queue(1)\nfor item in range(2): await queue.put(item)",
        ),
        "a queue that is never done": (
            DEADLOCK,
            both("Event.wait"),
            "queue = asyncio.Queue()\nqueue.put_nowait(1)\nawait queue.join()",
        ),
        "a stream without data": (DEADLOCK, both("StreamReader._wait_for_data"), "await asyncio.StreamReader().read()"),
        "a sleep without end": (DEADLOCK, both("Event.wait"), "await asyncio.wait_for(asyncio.Event().wait(), None)"),
        "a limit that is none": (DEADLOCK, RECEIVES, "async with asyncio.timeout(None): await alone()"),
        "an event of the other rank's": (
            DEADLOCK,
            both("Event.wait"),
            "event = shared.setdefault(other, asyncio.Event())\nawait event.wait()",
        ),
        "a lock that the other holds": (
            DEADLOCK,
            r"rank 0 at .*: barrier.*\n.*own that nobody can give: rank 1 \(Lock.acquire",
            "lock = shared.setdefault('lock', asyncio.Lock())\nasync with lock: await model.barrier()",
        ),
        "two locks, crosswise": (
            DEADLOCK,
            both("Lock.acquire"),
            "locks = shared.setdefault('locks', [asyncio.Lock(), asyncio.Lock()])\n"
            "async with locks[model.rank]:\n    await asyncio.sleep(0)\n    async with locks[other]: pass",
        ),
    },
    "tasks": {
        "a task": (DEADLOCK, RECEIVES, "await asyncio.create_task(alone())"),
        "a gather": (DEADLOCK, RECEIVES, "await asyncio.gather(alone(), alone('b'))"),
        "a group": (DEADLOCK, RECEIVES, "async with asyncio.TaskGroup() as group: group.create_task(alone())"),
        "a shield": (DEADLOCK, RECEIVES, "await asyncio.shield(alone())"),
        "those that are done first": (
            DEADLOCK,
            RECEIVES,
            "for done in asyncio.as_completed([alone(), alone('b')]): await done",
        ),
        "the first exception": (
            DEADLOCK,
            RECEIVES,
            "tasks = {asyncio.create_task(alone())}\nawait asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)",
        ),
        "a task within a task": (
            DEADLOCK,
            RECEIVES,
            "async def inner(): await asyncio.create_task(alone())\nawait asyncio.create_task(inner())",
        ),
        "tasks for one another": (
            DEADLOCK,
            both("a future"),
            "tasks = []\nasync def waits(place): await tasks[place]\n"
            "tasks += [asyncio.create_task(waits(1)), asyncio.create_task(waits(0))]\nawait tasks[0]",
        ),
        "the other rank's task": (
            DEADLOCK,
            both("a future"),
            "shared[model.rank] = asyncio.current_task()\nawait asyncio.sleep(0)\nawait shared[other]",
        ),
        "one that is left behind": (
            OWN,
            RECEIVES,
            "shared[model.rank] = asyncio.create_task(alone())\nawait asyncio.sleep(0)",
        ),
        "one after a call in a thread": (
            DEADLOCK,
            RECEIVES,
            "await asyncio.get_running_loop().run_in_executor(None, int)\nawait alone()",
        ),
    },
    "clean-ups": {
        "finally": (DEADLOCK, RECEIVES, "try: pass\nfinally: await alone()"),
        "after an error of one's own": (DEADLOCK, RECEIVES, "try: raise ValueError\nexcept ValueError: await alone()"),
        "the exit of a context": (
            DEADLOCK,
            RECEIVES,
            "class Held:\n    async def __aenter__(self): pass\n"
            "    async def __aexit__(self, *_): await alone()\nasync with Held(): pass",
        ),
        "a stack of exits": (
            DEADLOCK,
            RECEIVES,
            "async with contextlib.AsyncExitStack() as stack: stack.push_async_callback(alone)",
        ),
        "a generator that is closed": (
            DEADLOCK,
            RECEIVES,
            "async def items():\n    try: yield\n    finally: await alone()\n"
            "found = items()\nawait anext(found)\nawait found.aclose()",
        ),
        "a generator that is left": (
            DEADLOCK,
            RECEIVES,
            "async def items():\n    try: yield\n    finally: await alone()\nasync for _ in items(): break",
        ),
        "a task that is cancelled and waits": (
            DEADLOCK,
            RECEIVES,
            "async def clings():\n    try: await alone('b')\n    finally: await alone()\n"
            "task = asyncio.create_task(clings())\nawait asyncio.sleep(0)\ntask.cancel()\nawait task",
        ),
    },
    "tried again": {
        "whatever comes": (DEADLOCK, RECEIVES, "while True:\n    with contextlib.suppress(Exception): await alone()"),
        "also when cancelled": (
            DEADLOCK,
            RECEIVES,
            "for _ in range(100):\n    try: await alone()\n"
            "    except (Exception, asyncio.CancelledError) as error: kept = error\nraise kept",
        ),
        "in other tasks": (
            DEADLOCK,
            RECEIVES,
            "while True:\n    with contextlib.suppress(Exception):\n        await asyncio.create_task(alone())",
        ),
    },
}


def program_of(lines: str) -> Any:
    """Return the function of a rank that does some lines."""
    shared: dict[Any, Any] = {}
    space = {"asyncio": asyncio, "contextlib": contextlib, "shared": shared}
    body = (
        "other = 1 - model.rank\ninp = model.get_input_activation([model.rank])\n"
        f"async def alone(tag=0): await model.receive(other, tag=tag)\n{lines}\nreturn model\n"
    )
    exec(f"async def program(model):\n{textwrap.indent(body, '    ')}", space)
    return space["program"]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, named in PROGRAMS.items() for name in named])
def test_a_program_that_waits_for_ever_has_its_verdict(kind: str, name: str, capsys: Any) -> None:
    error, words, lines = PROGRAMS[kind][name]
    program: Any = program_of(lines)
    with pytest.raises(error, match=words) as found:
        mt.simulate(program, world_size=2, num_layers=1, global_batch_size=2, check=False)
    assert type(found.value) is error
    assert capsys.readouterr().err == ""  # at once: nobody is told that it still waits


def test_the_list_is_long_enough() -> None:
    assert sum(map(len, PROGRAMS.values())) >= 40
