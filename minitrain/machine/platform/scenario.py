"""`Scenario`: hardware and tasks with arrival times in a file, to use the platform without Python.

`minitrain platform run FILE` simulates one.

    hardware_profile: {compute_devices: [...], network_links: [...]}   # or: hardware: h100_80g_nvl8, world_size: 16
    tasks:
      - {task_id: prefill, compute: gpu0, flops_required_fp16: 1.0e12, memory_read_bytes: 1.0e9}
      - {task_id: move, after: [prefill], transfer: [gpu0, gpu1], size_bytes: 100000000}
      - {task_id: sum, at_s: 0.001, collective: all_reduce, participants: [gpu0, gpu1], size_bytes: 100000000}
      - {task_id: serve, model: llama3-8b, device: gpu0, num_tokens: 512}
      - {task_id: hold, allocate: gpu0, size_bytes: 1000000000}
      - {task_id: request, compute: gpu0, flops_required: 1.0e12, arrivals: {rate_per_s: 100, count: 1000, seed: 0}}

`arrivals` makes many tasks of one, "request 0", "request 1" ..., which arrive as a Poisson process from `at_s` on. With
`service: exponential`, each asks for its FLOP and bytes times a random number of mean one; without, all for the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from minitrain.errors import (
    MinitrainError,
    OutOfMemoryError,
    UsageError,
    choice_fault,
    is_count,
    is_number,
    one_of,
    refuse,
    shown,
)
from minitrain.files import StrPath
from minitrain.machine.platform.links import require_known
from minitrain.machine.platform.platform import Steps, VirtualHardwarePlatform
from minitrain.machine.platform.profile import (
    BYTES_KEYS,
    KEY,
    MODEL_TASK_KEYS,
    OPERATION_EFFICIENCY,
    object_of,
    profile_of_config,
    wait_and_priority,
)

if TYPE_CHECKING:
    import simpy
    from simpy import Process

_TOP = (
    *(KEY, "hardware", "world_size", "nics", "tasks"),
    *("efficiency", "level_of_detail", "unit_rates", "backfill", "model_params"),
)
_COMMON = ("task_id", "at_s", "after", "arrivals")
_ARRIVALS = ("rate_per_s", "count", "seed", "service")
_SERVICES = ("equal", "exponential")
_VERBS: Mapping[str, tuple[str, ...]] = {
    "compute": (),  # and what a task may have
    "model": ("device", "num_tokens", "precision", *MODEL_TASK_KEYS),
    "transfer": ("size_bytes",),
    "collective": ("participants", "size_bytes", "algorithm"),
    "allocate": ("size_bytes", "wait", "priority"),
    "free": ("size_bytes",),
}


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task of a scenario that could not be carried out.

    Args:
        task_id: its name.
        end: when that was known, s.
        reason: why.
    """

    task_id: str
    end: float
    reason: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """Hardware, and tasks that arrive.

    Args:
        platform: the hardware.
        tasks: what arrives, in the file's order.
        arrivals: the names of tasks that one with `arrivals` stands for, by its name.
        failures: tasks for which memory did not suffice, and those that come after them; known when it has run.
    """

    platform: VirtualHardwarePlatform
    tasks: tuple[Mapping[str, Any], ...]
    arrivals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    failures: list[TaskFailure] = field(default_factory=list)

    @classmethod
    def read(cls, source: StrPath | Mapping[str, Any], level_of_detail: Any = None) -> Scenario:
        """Return the scenario of a YAML or JSON file, or of its content.

        Args:
            source: a path, or a mapping.
            level_of_detail: in the place of the file's.

        Raises:
            HardwareConfigError: the file cannot be found or read, or names a config that cannot.
            UsageError: an unknown key, or a value outside its rule; all faults of tasks at once.
        """
        data = object_of(source, f"a scenario must be an object with {', '.join(_TOP)}")
        require_known("a scenario has no key", data, _TOP)
        if (KEY in data) == ("hardware" in data):
            raise UsageError(f"a scenario needs {KEY}, or hardware (a config's name) and world_size; give one of them")
        detail = level_of_detail or data.get("level_of_detail", "high")
        platform = VirtualHardwarePlatform(
            detail, data.get("unit_rates", "shared"), backfill=data.get("backfill", False)
        )
        profile: Any = data.get(KEY)
        if KEY not in data:
            profile = profile_of_config(data["hardware"], data.get("world_size", 8), nics=data.get("nics"))
        platform.initialize(profile, model_chars_db=data.get("model_params"))
        _set_efficiency(platform, data.get("efficiency", {}))
        tasks = _tasks(data.get("tasks"))
        many = {task["task_id"]: _arriving(task) for task in tasks if "arrivals" in task}
        every = [one for task in tasks for one in many.get(task["task_id"], [task])]
        return cls(platform, tuple(every), {name: [one["task_id"] for one in found] for name, found in many.items()})

    def latencies_s(self) -> dict[str, list[float]]:
        """Return how long tasks with `arrivals` took from their submission to their end, s, in ascending order."""
        took = {result.task_id: result.end - result.submitted for result in self.platform.results}
        return {name: sorted(took[one] for one in found if one in took) for name, found in self.arrivals.items()}

    def run(self) -> float:
        """Simulate all tasks to their ends, and return the moment of the last, s.

        A task for which memory does not suffice ends with its reason (`failures`); the others go on.

        Raises:
            MinitrainError: a task cannot be carried out for another reason; the message names it.
        """
        env = self.platform.env
        running: dict[str, Process] = {}
        for task in self.tasks:
            before = [running[name] for name in task.get("after", ())]
            running[task["task_id"]] = env.process(self._carry_out(task, before))
        env.run()
        ended = {name for name, process in running.items() if not process.is_alive}
        for task in self.tasks:
            if task["task_id"] not in ended:
                others = ", ".join(name for name in task.get("after", ()) if name not in ended)
                reason = f"it comes after {others}" if others else "it still waits for memory that nobody gives back"
                self._fail(task["task_id"], reason)
        return float(env.now)

    def _carry_out(self, task: Mapping[str, Any], before: list[Process]) -> Steps:
        """Go through a task; the value of its process is its failure, or None."""
        env, name = self.platform.env, task["task_id"]
        if task.get("at_s", 0):
            yield env.timeout(task["at_s"])
        yield env.all_of(before)
        failed = [process.value.task_id for process in before if process.value is not None]
        if failed:
            return self._fail(name, f"it comes after {', '.join(failed)}")
        try:
            submitted = self._submit(dict(task))
        except OutOfMemoryError as error:
            return self._fail(name, str(error))
        except MinitrainError as error:
            raise type(error)(f"task {name}: {error}", **error.facts) from None
        yield submitted
        return None

    def _fail(self, task_id: str, reason: str) -> TaskFailure:
        failure = TaskFailure(task_id, float(self.platform.env.now), reason)
        self.failures.append(failure)
        return failure

    def _submit(self, task: dict[str, Any]) -> simpy.Event:
        """Let a task begin; what it lacks or gets wrong is refused by the platform."""
        platform, name, size = self.platform, task["task_id"], task.get("size_bytes")
        match task:
            case {"compute": device}:
                rest = {key: value for key, value in task.items() if key not in ("compute", *_COMMON[1:])}
                return platform.submit_computation_task(device, rest)
            case {"model": model}:
                tokens, precision = task.get("num_tokens", 1), task.get("precision", "fp16")
                more = {key: task[key] for key in MODEL_TASK_KEYS if key in task}
                return platform.submit_model_task(task.get("device", ""), model, tokens, precision, name, **more)
            case {"transfer": [source, dest]}:
                return platform.submit_network_transfer_task(source, dest, size, task_id=name)
            case {"transfer": ends}:
                raise UsageError(f"transfer must be a list of source and destination, found {shown(ends)}")
            case {"collective": op}:
                members, algorithm = task.get("participants", ()), task.get("algorithm", "ring")
                return platform.submit_collective_task(op, members, size, algorithm, name)  # type: ignore[arg-type]
            case {"allocate": device}:
                wait, priority = wait_and_priority(task, name)
                return platform.allocate_memory(device, size, wait=wait, priority=priority)  # type: ignore[arg-type]
        return platform.free_memory(task["free"], size)  # type: ignore[arg-type]  # refused there


def _set_efficiency(platform: VirtualHardwarePlatform, factors: Any) -> None:
    """Set what tasks reach: `{mfu: 0.5, mbu: 0.8, matmul: {mfu: 0.7, mbu: 0.9}}`."""
    if not isinstance(factors, Mapping):
        raise UsageError(f"efficiency must be an object, found {shown(factors)}")
    require_known("efficiency has no key", factors, ("mfu", "mbu", *OPERATION_EFFICIENCY))
    own = {name: value for name, value in factors.items() if name not in OPERATION_EFFICIENCY}
    for kind, values in [(None, own), *((name, factors[name]) for name in factors if name not in own)]:
        if not isinstance(values, Mapping):
            raise UsageError(f"efficiency.{kind} must be an object with mfu and mbu, found {shown(values)}")
        require_known("efficiency has no key", values, ("mfu", "mbu"))
        platform.set_efficiency_factors(values.get("mfu", 1.0), values.get("mbu", 1.0), kind)


def _tasks(items: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the tasks of a scenario, each with a name, or raise one error with all faults."""
    if not isinstance(items, list) or not items:
        raise UsageError(f"a scenario needs tasks, a list of at least one; found {shown(items)}")
    faults: list[str] = []
    found: dict[str, Mapping[str, Any]] = {}
    for place, item in enumerate(items):
        task: Mapping[str, Any] = item if isinstance(item, Mapping) else {}
        name = str(task.get("task_id", f"task {place}"))
        faults += [f"{name}: {fault}" for fault in _faults(item, found)]
        if name in found:
            faults.append(f"two tasks are called {name!r}; give each a name of its own")
        found[name] = {**task, "task_id": name}
    if faults:
        raise refuse("the scenario", faults)
    return tuple(found.values())


def _arriving(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tasks that one with `arrivals` stands for."""
    arrivals, moment = task["arrivals"], float(task.get("at_s", 0))
    rest = {key: value for key, value in task.items() if key != "arrivals"}
    random = Random(arrivals.get("seed", 0))
    is_exponential = arrivals.get("service") == "exponential"
    found: list[Mapping[str, Any]] = []
    for number in range(arrivals["count"]):
        moment += random.expovariate(arrivals["rate_per_s"])
        factor = random.expovariate(1.0) if is_exponential else 1.0
        work = {key: rest[key] * factor for key in rest if key.startswith("flops_required") or key in BYTES_KEYS}
        found.append({**rest, **work, "task_id": f"{task['task_id']} {number}", "at_s": moment})
    return found


def _arrival_faults(arrivals: Any, verb: str) -> list[str]:
    """Return what is wrong with how tasks arrive."""
    if not isinstance(arrivals, Mapping):
        return [f"arrivals must be an object with {', '.join(_ARRIVALS)}, found {shown(arrivals)}"]
    faults = [f"arrivals: no key {key!r}; {one_of(key, _ARRIVALS)}" for key in arrivals if key not in _ARRIVALS]
    rate, number, service = (arrivals.get(key) for key in ("rate_per_s", "count", "service"))
    if not is_number(rate) or not rate:
        faults.append(f"arrivals: rate_per_s must be a number above 0, found {shown(rate)}")
    if not is_count(number):
        faults.append(f"arrivals: count must be an integer of at least 1, found {shown(number)}")
    if not isinstance(arrivals.get("seed", 0), int):
        faults.append(f"arrivals: seed must be an integer, found {shown(arrivals['seed'])}")
    fault = service and choice_fault("service", service, _SERVICES)
    faults += [f"arrivals: {fault}"] if fault else []
    if service == "exponential" and verb != "compute":
        faults.append(f"arrivals: service exponential is for compute, not {verb}")
    return faults


def _faults(item: Any, before: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one task."""
    if not isinstance(item, Mapping):
        return [f"expected an object, found {shown(item)}"]
    verbs = [verb for verb in _VERBS if verb in item]
    if len(verbs) != 1:
        return [f"a task says one of {', '.join(_VERBS)}; found {', '.join(verbs) or 'none'}"]
    at_s, after, known = item.get("at_s", 0), item.get("after", []), (*verbs, *_COMMON, *_VERBS[verbs[0]])
    faults = [] if is_number(at_s) else [f"at_s must be a number of seconds >= 0, found {shown(at_s)}"]
    if not isinstance(after, list):
        faults.append(f"after must be a list of names of tasks, found {shown(after)}")
        after = []
    faults += [f"after names {one!r}, but no task before is called so" for one in after if one not in before]
    many = [one for one in after if "arrivals" in before.get(one, ())]
    faults += [f"after names {one!r}, which stands for many tasks; name a single one" for one in many]
    faults += _arrival_faults(item["arrivals"], verbs[0]) if "arrivals" in item else []
    unknown = [key for key in item if key not in known] if verbs != ["compute"] else []
    return faults + [f"no key {key!r}; {one_of(key, known)}" for key in unknown]
