"""Which workers an `executor=` means: own processes, an executor as it is, a client of Dask, Ray, or either's address.

An address is a text: "tcp://host:8786" (or tls, ucx, ws) of a Dask scheduler, "ray" for the Ray that is initialised or
runs on this machine, "ray://host:10001" or "ray:ADDRESS" for any other that `ray.init` can find. A connection that is
made here ends here; what the caller has made stays as it is. Both packages are extras, imported where one is used.

**What is sent** (`Sender`): a function, its arguments, and the strategies' own files, as bytes. minitrain itself must
be installed there. A strategy given as "path.py:function" is sent as its file and the files beside it that it imports;
the worker puts them into a folder of its own and loads the strategy from there. A function of a module that is not
installed is pickled by value, with the modules in its folder. Other files that a configuration names (of hardware, of a
model) are not sent.

**Lost workers.** Dask's scheduler repeats their tasks, and gives up a task that has lost four workers (its setting
`allowed-failures`). When the scheduler is lost, the client waits some seconds for one at the same address, to which the
tasks are sent again. A task of Ray is a remote function, as Ray has no executor of `concurrent.futures`. Ray would
repeat the task of a lost worker without a warning. That is switched off here, so that a loss is reported, and a task
that ends its process is given up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.errors import MinitrainError, UsageError
from minitrain.files import TemporaryFolder
from minitrain.run.strategy_loading import file_in, loading_from, split_options, unwrapped
from minitrain.search.sweeps.own_processes import LossyWorkers, OwnProcesses, SentTask

DASK_PROTOCOLS = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
_RAY = "ray"


def require_workers(executor: Any) -> None:
    """Require something that work can be given to, before any work begins.

    Raises:
        UsageError: it is neither an executor nor a client of Dask, nor Ray, nor an address of either.
    """
    is_known = executor is None or isinstance(executor, Executor) or _is_client(executor) or _is_ray(executor)
    if not is_known and not (isinstance(executor, str) and executor.startswith(DASK_PROTOCOLS)):
        raise UsageError(
            "executor must be a concurrent.futures executor, a dask.distributed client or its address "
            f'("tcp://host:8786"), the module ray, "ray" or "ray://host:10001"; got {executor!r:.80}'
        )


@contextlib.contextmanager
def workers_of(executor: Any, jobs: int | None, strategies: Sequence[Any]) -> Iterator[tuple[Executor, int]]:
    """Provide an executor for what the caller gave, and how many tasks to submit to it at once.

    Args:
        executor: what `require_workers` takes; None for processes that end with this.
        jobs: how many processes; one a core if None.
        strategies: what is simulated; workers on a cluster are sent their files.

    Raises:
        UsageError: the engine is not installed, or does not answer.
    """
    require_workers(executor)
    if isinstance(executor, Executor) and not _is_of_dask(executor):
        yield executor, 2 * int(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)
        return
    with _lossy_workers(executor, jobs, strategies) as workers:
        yield workers, workers.num_at_once


def first_done(workers: Executor, futures: Collection[Future[Any]]) -> Collection[Future[Any]]:
    """Wait until some futures of an executor are done, and return them."""
    if isinstance(workers, LossyWorkers):
        return workers.first_done(futures)
    return wait(futures, return_when=FIRST_COMPLETED).done


def _lossy_workers(
    executor: Any, jobs: int | None, strategies: Sequence[Any]
) -> contextlib.AbstractContextManager[LossyWorkers]:
    """Return a context manager of workers, each of which may be lost."""
    if executor is None:
        return contextlib.closing(OwnProcesses(jobs or os.cpu_count() or 1))
    if _is_ray(executor):
        return ray_workers(_address_of_ray(executor) if isinstance(executor, str) else None, strategies)
    return dask_workers(executor._client if _is_of_dask(executor) else executor, strategies)


def _is_of_dask(executor: Any) -> bool:
    """Return whether something is what `client.get_executor()` returns."""
    return isinstance(executor, Executor) and _is_client(getattr(executor, "_client", None))


def _is_client(executor: Any) -> bool:
    """Return whether something is a client of Dask; one can only be there where Dask is imported."""
    return any(each.__module__ == "distributed.client" and each.__name__ == "Client" for each in type(executor).__mro__)


def _is_ray(executor: Any) -> bool:
    """Return whether something is the module ray, or an address of Ray."""
    if isinstance(executor, str):
        return executor == _RAY or executor.startswith(f"{_RAY}:")
    return getattr(executor, "__name__", None) == _RAY and hasattr(executor, "remote")


def _address_of_ray(text: str) -> str:
    """Return the address that `ray.init` takes.

    >>> [_address_of_ray(text) for text in ("ray", "ray:auto", "ray:10.0.0.1:6379", "ray://10.0.0.1:10001")]
    ['auto', 'auto', '10.0.0.1:6379', 'ray://10.0.0.1:10001']
    """
    return text if text.startswith("ray://") else text.partition(":")[2] or "auto"


Files = tuple[tuple[str, bytes], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SentFolder:
    """A strategy's file and what it imports of its folder.

    Args:
        folder: where they lie for the caller.
        files: content by path relative to the folder.
    """

    folder: str
    files: Files


class Sender:
    """Makes bytes of work.

    Args:
        strategies: what the work may simulate, as `simulate` takes strategies.
        pickler: cloudpickle, of the engine.
    """

    def __init__(self, strategies: Sequence[Any], pickler: ModuleType) -> None:
        self._pickler: Any = pickler
        self._folders = _folders_of(one for one in strategies if isinstance(one, str))
        self._modules = _modules_of(one for one in strategies if not isinstance(one, str))

    def bytes_of(self, function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
        """Return a call as bytes for `do_sent_work`.

        Raises:
            TypeError: something in it cannot be pickled.
        """
        with self._by_value():
            return bytes(self._pickler.dumps((function, tuple(arguments), self._folders)))

    @contextlib.contextmanager
    def _by_value(self) -> Iterator[None]:
        """Have modules pickled by value."""
        for module in self._modules:
            self._pickler.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in self._modules:
                self._pickler.unregister_pickle_by_value(module)


def do_sent_work(sent: bytes) -> Any:
    """Do work that was sent, and return its result; paths in the result are those of the caller."""
    function, arguments, folders = pickle.loads(sent)
    there = {path: _unpacked(sent_folder.files) / Path(path).name for path, sent_folder in folders.items()}
    with loading_from(there):
        result = function(*arguments)
    callers = {str(there[path].parent): sent_folder.folder for path, sent_folder in folders.items()}
    return _renamed(result, callers) if callers else result


@lru_cache(maxsize=64)
def _folder_for(_files: Files) -> TemporaryFolder:
    """Return a folder for some files; it is removed when the worker ends."""
    return TemporaryFolder("minitrain-strategy-")


def _unpacked(files: Files) -> Path:
    """Return the folder that holds some files."""
    folder = _folder_for(files).path
    for name, content in files:
        path = folder / name
        if not path.exists():  # another thread of this worker may load it by now
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{len(content)}.part")
            partial.write_bytes(content)
            partial.replace(path)
    return folder


def _renamed(result: Any, folders: Mapping[str, str]) -> Any:
    """Return a result in whose texts folders of this worker have the names that the caller knows."""
    if isinstance(result, str):
        for here, there in folders.items():
            result = result.replace(here, there)
        return result
    if isinstance(result, list | tuple):
        return type(result)(_renamed(each, folders) for each in result)
    if isinstance(result, dict):
        return {name: _renamed(value, folders) for name, value in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        names = [field.name for field in dataclasses.fields(result) if field.init]
        return dataclasses.replace(result, **{name: _renamed(getattr(result, name), folders) for name in names})
    return result


def _folders_of(texts: Iterable[str]) -> dict[str, SentFolder]:
    """Return the folder to send for each file that strategies are given by."""
    paths = {str(path): path for text in texts if (path := file_in(split_options(text)[0])) is not None}
    return {
        name: SentFolder(str(path.parent) if path.parent != Path() else ".", _needed(path))
        for name, path in paths.items()
        if path.is_file()
    }


def _needed(path: Path) -> Files:
    """Return a file and those files and packages beside it that it names, or that these name."""
    folder = path.absolute().parent
    entries = sorted(folder.iterdir())
    packages = {entry for entry in entries if entry.is_dir() and any(entry.glob("*.py"))}
    beside = {entry.stem: entry for entry in entries if entry.suffix == ".py" or entry in packages}
    wanted, files = [path.absolute()], dict[Path, bytes]()
    while wanted:
        here = wanted.pop()
        for file in [here] if here.is_file() else sorted(here.rglob("*.py")):
            files[file] = file.read_bytes()
            named = set(re.findall(rb"\w+", files[file]))
            wanted += [
                entry for name, entry in beside.items() if name.encode() in named and not _is_among(entry, files)
            ]
    return tuple((file.relative_to(folder).as_posix(), content) for file, content in sorted(files.items()))


def _is_among(entry: Path, files: Mapping[Path, bytes]) -> bool:
    """Return whether a file, or a package's files, were taken before."""
    return any(file == entry or entry in file.parents for file in files)


def _modules_of(functions: Iterable[Any]) -> list[ModuleType]:
    """Return the modules of functions that workers cannot import, with those in their folders."""
    found: dict[str, ModuleType] = {}
    for function in map(unwrapped, functions):
        module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
        if module is None or module.__name__ == "__main__" or _is_installed(module):  # __main__ goes anyhow
            continue
        folder = Path(str(module.__file__)).absolute().parent
        others = (other for other in list(sys.modules.values()) if _lies_in(other, folder))
        found |= {other.__name__: other for other in (module, *others) if sys.modules.get(other.__name__) is other}
    return list(found.values())


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Return whether a module's file lies in a folder, or deeper."""
    file = getattr(module, "__file__", None)
    is_main = getattr(module, "__name__", "__main__") == "__main__"
    return not is_main and isinstance(file, str) and folder in Path(file).absolute().parents


def _is_installed(module: ModuleType) -> bool:
    """Return whether workers have a module: of Python, of what is installed there, or of minitrain."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "minitrain":
        return True
    folders = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")]
    return any(Path(folder) in Path(file).absolute().parents for folder in folders)


_FEWEST_AT_ONCE = 16
"""More tasks than there may be workers yet: an adaptive cluster grows with what waits."""


def installed(package: str, extra: str) -> Any:
    """Return the package of an engine.

    Args:
        package: its name.
        extra: the extra of minitrain that installs it.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise UsageError(
            f'{extra.capitalize()} is not installed; `pip install "minitrain[{extra}]"` installs it'
        ) from error


class ClusterWorkers(LossyWorkers):
    """Workers of an engine, as an executor.

    Args:
        strategies: whose files the workers need.
        pickler: cloudpickle, of the engine.
        num_threads: how many tasks the workers do at once.
        most_losses: a task whose worker is lost so often is not begun again.
    """

    def __init__(self, strategies: Sequence[Any], pickler: ModuleType, num_threads: int, most_losses: int) -> None:
        super().__init__(max(_FEWEST_AT_ONCE, 2 * num_threads), most_losses)
        self._sender = Sender(strategies, pickler)

    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
        return self._sender.bytes_of(function, arguments)


def with_remedy(error: BaseException) -> BaseException:
    """Return an error of a worker; what must be done, where minitrain is not what the worker has."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "minitrain":
        return MinitrainError(
            f"the workers cannot import {error.name}: install the same version of minitrain on every worker"
        )
    return error


_CONNECT_S = 30
_MOST_LOSSES = 2  # each is as many workers as the scheduler allows: once among other tasks, once alone
_ANSWERING = ("running", "connecting")
_GONE = (
    "the Dask scheduler was lost and did not come back; with a results file, the same call goes on where this one ended"
)


@contextlib.contextmanager
def dask_workers(client: Any, strategies: Sequence[Any]) -> Iterator[DaskWorkers]:
    """Provide the workers of a client, or of the scheduler at an address.

    Raises:
        UsageError: Dask is not installed, nothing answers at the address, or the client is one of coroutines.
    """
    distributed = installed("distributed", "dask")
    if isinstance(client, str):
        with _connected(distributed, client) as own, dask_workers(own, strategies) as workers:
            yield workers
        return
    if client.asynchronous:
        raise UsageError("the client of Dask must not be asynchronous; make it with Client(address)")
    workers = DaskWorkers(client, strategies)
    try:
        yield workers
    finally:
        workers.close()


@contextlib.contextmanager
def _connected(distributed: Any, address: str) -> Iterator[Any]:
    """Provide a client of the scheduler at an address."""
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address}; start one with `dask scheduler`, and give the address it says"
        ) from error
    with client:
        yield client


class DaskWorkers(ClusterWorkers):
    """Workers of a Dask cluster.

    Args:
        client: the client, which is not asynchronous.
        strategies: whose files the workers need.
    """

    def __init__(self, client: Any, strategies: Sequence[Any]) -> None:
        super().__init__(strategies, import_module("cloudpickle"), sum(client.nthreads().values()), _MOST_LOSSES)
        self._client = client
        self._killed = import_module("distributed").KilledWorker
        self._lost_connection = import_module("distributed.comm").CommClosedError
        self._is_closed = threading.Event()
        self._was_restarted = False
        self._leaving = set[str]()  # addresses of workers that a restart still ends
        self._suspects: list[SentTask] = []
        self._alone: SentTask | None = None  # the suspect that runs
        self._last_event_s = max((seconds for seconds, _ in client.get_events("all")), default=0.0)

    def _end(self, tasks: Sequence[SentTask]) -> None:
        self._is_closed.set()
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler may be lost by now
            if self._client.status == "running":
                self._note_replaced_workers()
                if handles := [task.handle for task in tasks if task.handle is not None]:
                    self._client.cancel(handles, force=True)

    def _note_replaced_workers(self) -> None:
        """Warn of lost workers whose tasks the scheduler itself has repeated."""
        if not self._was_restarted:
            events = (event for seconds, event in self._client.get_events("all") if seconds > self._last_event_s)
            if any(map(_is_loss, events)):
                self._note_loss()

    def _send(self, task: SentTask) -> None:
        if self._client.status not in _ANSWERING:
            self._failed(task, MinitrainError(_GONE))
            return
        task.handle = self._client.submit(do_sent_work, task.call, pure=False)
        task.handle.add_done_callback(lambda done: self._take(task, done))

    def _take(self, task: SentTask, done: Any) -> None:
        """Take what the scheduler says of a task, in a thread of the client's."""
        if not self._is_wanted(task):
            return
        try:
            self._succeeded(task, done.result())
        except self._killed as killed:
            if killed.last_worker.address in self._leaving:
                self._leaving.discard(killed.last_worker.address)
                self._send(task)
            elif self._lost(task):
                self._suspects.append(task)
        except self._lost_connection:
            self._send_again(task, "scheduler")
        except Exception as error:  # in a callback, it would reach nobody
            if done.cancelled():
                self._send_again(task, str(getattr(error, "reason", "")))
            else:
                self._failed(task, with_remedy(error))
        self._send_suspect()

    def _send_suspect(self) -> None:
        """Send a task again that may have ended its workers, or was beside one that did, if no other suspect runs."""
        with self._lock:
            self._suspects = [task for task in self._suspects if task in self._tasks]
            if self._alone in self._tasks or not self._suspects:
                return
            self._alone = task = self._suspects.pop(0)
        self._send(task)

    def _send_again(self, task: SentTask, reason: str) -> None:
        """Send a task again that the scheduler has forgotten, once there is one.

        Args:
            task: the task.
            reason: why it was forgotten, in words of Dask; a result may also be lost with its worker.
        """
        while self._client.status == "connecting":  # the client offers nothing to wait on
            if self._is_closed.wait(0.1):
                break
        if not self._is_wanted(task):
            return
        if self._client.status == "running" and reason.startswith("scheduler"):
            self._was_restarted = True
            self._leaving |= set(self._client.nthreads())  # until they end, what is sent may still go to them
            self._note("the Dask scheduler or its workers were restarted; what was under way is done again")
        elif self._client.status == "running":
            self._note_loss()
        self._send(task)


def _is_loss(event: Any) -> bool:
    """Return whether an event of the scheduler is that a worker was lost while it did something."""
    is_removal = isinstance(event, dict) and event.get("action") == "remove-worker"
    return is_removal and bool(event.get("processing-tasks")) and not event.get("expected")


_MOST_LOSSES_OF_RAY = 3
_LOSSES = ("WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError", "ObjectLostError")


@contextlib.contextmanager
def ray_workers(address: str | None, strategies: Sequence[Any]) -> Iterator[RayWorkers]:
    """Provide the workers of the Ray that is initialised, or of the one at an address.

    Args:
        address: what `ray.init` takes; None for the Ray that the caller has initialised.
        strategies: whose files the workers need.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """
    ray = installed("ray", "ray")
    with contextlib.ExitStack() as connection:
        if not ray.is_initialized():
            _connect(ray, address or "auto")
            connection.callback(ray.shutdown)
        workers = RayWorkers(ray, strategies)
        connection.callback(workers.close)
        yield workers


def _connect(ray: Any, address: str) -> None:
    """Connect with the cluster at an address."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address}; start one with `ray start --head`, and give the address it says"
        ) from error


class RayWorkers(ClusterWorkers):
    """Workers of a Ray cluster.

    Args:
        ray: the package, which is initialised.
        strategies: whose files the workers need.
    """

    def __init__(self, ray: Any, strategies: Sequence[Any]) -> None:
        num_threads = int(ray.cluster_resources().get("CPU", 1))
        super().__init__(strategies, import_module("ray.cloudpickle"), num_threads, _MOST_LOSSES_OF_RAY)
        self._ray = ray
        self._do = ray.remote(max_retries=0)(do_sent_work)
        self._losses = tuple(getattr(ray.exceptions, name) for name in _LOSSES)
        self._takes = ThreadPoolExecutor(1, "minitrain-ray")  # so that Ray's own thread does not wait for us

    def _send(self, task: SentTask) -> None:
        task.handle = self._do.remote(task.call)
        task.handle.future().add_done_callback(lambda done: self._have_taken(task, done))

    def _end(self, tasks: Sequence[SentTask]) -> None:
        for task in tasks:
            if task.handle is not None:
                self._ray.cancel(task.handle, force=True)
        self._takes.shutdown()

    def _have_taken(self, task: SentTask, done: Future[Any]) -> None:
        """Let another thread take the outcome of a task."""
        with contextlib.suppress(RuntimeError):  # closed: nobody waits
            self._takes.submit(self._take, task, done)

    def _take(self, task: SentTask, done: Future[Any]) -> None:
        """Take the outcome of a task."""
        if not self._is_wanted(task):
            return
        try:
            self._succeeded(task, done.result())
        except self._losses:
            if self._lost(task):
                self._send(task)
        except (Exception, CancelledError) as error:  # in this thread, it would reach nobody
            self._failed(task, with_remedy(getattr(error, "cause", None) or error))
