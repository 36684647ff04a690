"""A file of hardware and tasks with arrival times, to use the platform without Python: `minitrain platform run FILE`.

hardware_profile: {compute_devices: [...], network_links: [...]}   # or: hardware: h100_80g_nvl8, world_size: 16
tasks:
  - {task_id: prefill, compute: gpu0, flops_required_fp16: 1.0e12, memory_read_bytes: 1.0e9}
  - {task_id: move, after: [prefill], transfer: [gpu0, gpu1], size_bytes: 100000000}
  - {task_id: sum, at_s: 0.001, collective: all_reduce, participants: [gpu0, gpu1], size_bytes: 100000000}
  - {task_id: serve, model: llama3-8b, device: gpu0, num_tokens: 512}
  - {task_id: hold, allocate: gpu0, size_bytes: 1000000000}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import MinitrainError, UsageError
from minitrain.hardware.config_files import parse, read_file
from minitrain.platform.cluster_links import profile_of_config
from minitrain.platform.platform import VirtualHardwarePlatform
from minitrain.platform.profile import KEY
from minitrain.workloads.field_faults import closest, refuse, shown

if TYPE_CHECKING:
    from simpy import Event, Process

_TOP = (KEY, "hardware", "world_size", "nics", "tasks", "efficiency", "level_of_detail", "model_params")
_COMMON = ("task_id", "at_s", "after")
_VERBS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute": (),  # and what a task may have
        "model": ("device", "num_tokens", "precision"),
        "transfer": ("size_bytes",),
        "collective": ("participants", "size_bytes", "algorithm"),
        "allocate": ("size_bytes",),
        "free": ("size_bytes",),
    }
)


@final
@dataclass(frozen=True, slots=True)
class Scenario:
    """Hardware, and tasks that arrive.

    Args:
        platform: the hardware.
        tasks: what arrives, in the file's order.
    """

    platform: VirtualHardwarePlatform
    tasks: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, source: str | PathLike[str] | Mapping[str, Any], level_of_detail: Any = None) -> Scenario:
        """Return the scenario of a YAML or JSON file, or of its content.

        Args:
            source: a path, or a mapping.
            level_of_detail: in the place of the file's.

        Raises:
            HardwareConfigError: the file cannot be found or read, or names a config that cannot.
            UsageError: an unknown key, or a value outside its rule; all faults of tasks at once.
        """
        data: Any = source
        if not isinstance(source, Mapping):
            path = Path(fspath(source))
            data = parse(read_file(str(path)), path.name)
        if not isinstance(data, Mapping):
            raise UsageError(f"a scenario must be an object with {', '.join(_TOP)}, found {shown(data)}")
        unknown = [key for key in data if key not in _TOP]
        if unknown:
            meant = closest(unknown[0], _TOP)
            raise UsageError(
                f"a scenario has no key {unknown[0]!r}{f' ({meant})' if meant else ''}; use {', '.join(_TOP)}"
            )
        platform = VirtualHardwarePlatform(level_of_detail or data.get("level_of_detail", "high"))
        platform.initialize(_profile(data), model_chars_db=data.get("model_params"))
        platform.set_efficiency_factors(**data.get("efficiency", {}))
        return cls(platform, _tasks(data.get("tasks")))

    def run(self) -> float:
        """Simulate all tasks to their ends, and return the moment of the last, s.

        Raises:
            MinitrainError: a task cannot be carried out; the message names it.
        """
        env = self.platform.env
        running: dict[str, Process] = {}
        for task in self.tasks:
            before = [running[name] for name in task.get("after", ())]
            running[task["task_id"]] = env.process(self._carry_out(task, before))
        return self.platform.run()

    def _carry_out(self, task: Mapping[str, Any], before: list[Process]) -> Generator[Event, Any, None]:
        env = self.platform.env
        if task.get("at_s", 0):
            yield env.timeout(task["at_s"])
        yield env.all_of(before)
        try:
            submitted = _submit(self.platform, task)
        except MinitrainError as error:
            raise type(error)(f"task {task['task_id']}: {error}", **error.facts) from None
        yield submitted


def _profile(data: Mapping[str, Any]) -> Any:
    """Return the hardware that a scenario names."""
    if (KEY in data) == ("hardware" in data):
        raise UsageError(f"a scenario needs {KEY}, or hardware (a config's name) and world_size; give one of them")
    if KEY in data:
        return data[KEY]
    size = data.get("world_size", 8)
    return profile_of_config(data["hardware"], size, nics=data.get("nics"))


def _tasks(items: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the tasks of a scenario, each with a name, or raise one error with all faults."""
    if not isinstance(items, list) or not items:
        raise UsageError(f"a scenario needs tasks, a list of at least one; found {shown(items)}")
    faults: list[str] = []
    found: dict[str, Mapping[str, Any]] = {}
    for place, item in enumerate(items):
        name = str(item.get("task_id", f"task {place}")) if isinstance(item, Mapping) else f"task {place}"
        faults += [f"{name}: {fault}" for fault in _faults(item, found)]
        if name in found:
            faults.append(f"two tasks are called {name!r}; give each a name of its own")
        found[name] = {**item, "task_id": name} if isinstance(item, Mapping) else {}
    if faults:
        raise refuse("the scenario", faults)
    return tuple(found.values())


def _faults(item: Any, before: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one task."""
    if not isinstance(item, Mapping):
        return [f"expected an object, found {shown(item)}"]
    verbs = [verb for verb in _VERBS if verb in item]
    if len(verbs) != 1:
        return [f"a task says one of {', '.join(_VERBS)}; found {', '.join(verbs) or 'none'}"]
    faults = []
    at_s = item.get("at_s", 0)
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not at_s >= 0:
        faults.append(f"at_s must be a number of seconds >= 0, found {shown(at_s)}")
    after = item.get("after", [])
    if not isinstance(after, list):
        faults.append(f"after must be a list of names of tasks, found {shown(after)}")
    else:
        faults += [f"after names {one!r}, but no task before is called so" for one in after if one not in before]
    known = (*verbs, *_COMMON, *_VERBS[verbs[0]])
    if verbs[0] != "compute":
        faults += [f"no key {key!r} {closest(key, known)}".rstrip() for key in item if key not in known]
    return faults


def _submit(platform: VirtualHardwarePlatform, task: Mapping[str, Any]) -> Event:
    """Let a task begin."""
    verb = next(verb for verb in _VERBS if verb in task)
    return _SUBMITS[verb](platform, task, task[verb])


def _compute(platform: VirtualHardwarePlatform, task: Mapping[str, Any], device: str) -> Event:
    rest = {key: value for key, value in task.items() if key not in ("compute", "at_s", "after")}
    return platform.submit_computation_task(device, rest)


def _model(platform: VirtualHardwarePlatform, task: Mapping[str, Any], model: str) -> Event:
    return platform.submit_model_task(
        task.get("device", ""), model, task.get("num_tokens", 1), task.get("precision", "fp16"), task["task_id"]
    )


def _transfer(platform: VirtualHardwarePlatform, task: Mapping[str, Any], ends: Any) -> Event:
    if not isinstance(ends, list) or len(ends) != 2:
        raise UsageError(f"transfer must be a list of source and destination, found {shown(ends)}")
    return platform.submit_network_transfer_task(ends[0], ends[1], task.get("size_bytes"), task_id=task["task_id"])


def _collective(platform: VirtualHardwarePlatform, task: Mapping[str, Any], op: str) -> Event:
    members, size = task.get("participants", ()), task.get("size_bytes")
    return platform.submit_collective_task(op, members, size, task.get("algorithm", "ring"), task["task_id"])  # type: ignore[arg-type]  # refused there


def _allocate(platform: VirtualHardwarePlatform, task: Mapping[str, Any], device: str) -> Event:
    return platform.allocate_memory(device, task.get("size_bytes"))  # type: ignore[arg-type]  # refused there


def _free(platform: VirtualHardwarePlatform, task: Mapping[str, Any], device: str) -> Event:
    return platform.free_memory(device, task.get("size_bytes"))  # type: ignore[arg-type]  # refused there


_SUBMITS: Mapping[str, Callable[[VirtualHardwarePlatform, Mapping[str, Any], Any], Event]] = MappingProxyType(
    {
        "compute": _compute,
        "model": _model,
        "transfer": _transfer,
        "collective": _collective,
        "allocate": _allocate,
        "free": _free,
    }
)
