"""What the host does beside the device: `offload`, `fetch`, `write`, and an optimizer's step, `update_on_host`.

Each direction has a stream of its own, priced by the link to the host. `offload` gives an `OnHost`. Store it in
`model.host`: it counts as host memory from its offload on, until it is deleted there. `fetch` makes the tensor again on
the device; the copy on the host stays until it is deleted, so that weights can be fetched as often as they are needed.

    host[layer] = await model.offload(activations.pop(layer))
    activations[layer] = await model.fetch(host[layer])
    del host[layer]

`write` takes what lies there to the storage, as checkpoints do. Its copy counts as host memory until the write ends.

    model.host[layer] = await model.offload(weights[layer])
    writes[layer] = model.launch(model.write(model.host[layer]))
    del model.host[layer]

`update_on_host` takes the step of what lies there, in place, by the host's processor: weight and state are one step on
when it ends, and the strategy fetches the weight.

    await model.update_on_host(model.host["grad", layer], model.host["weight", layer], model.host["state", layer])
    weights[layer] = await model.fetch(model.host["weight", layer])
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from minitrain.engine import laws
from minitrain.engine.experts import law_of_update
from minitrain.engine.operations import Launched, Operation, PeerStream, samples_of
from minitrain.engine.state import RankState
from minitrain.engine.stores import Account, Store
from minitrain.errors import HardwareConfigError, LawError, OutOfMemoryError, StrategyError, TensorTypeError
from minitrain.machine.price import Price
from minitrain.operations import FETCH, OFFLOAD, SAMPLES, UNITS_PER_ELEMENT, UPDATE_ON_HOST, WRITE
from minitrain.operations.collectives import describe
from minitrain.tensors import FIELDS
from minitrain.tensors.fields import OnHost, copy_to_device, copy_to_host
from minitrain.tensors.placed import PIECES

T = TypeVar("T")


class HostStore(Store[OnHost]):
    """What a rank keeps in the memory of its host.

    Args:
        account: of the host's memory.
        rank: whose it is, for messages.
        capacity_units: the host's memory, in units.
        unit_bytes: bytes of a unit.
    """

    __slots__ = ("_begun", "_capacity_units", "_rank", "_unit_bytes")

    def __init__(self, account: Account, rank: int, capacity_units: float, unit_bytes: float) -> None:
        super().__init__(account)
        self._rank = rank
        self._capacity_units = capacity_units
        self._unit_bytes = unit_bytes
        self._begun: dict[int, OnHost] = {}  # what counts and is not stored, by identity

    @property
    def peak_bytes(self) -> float:
        """The most bytes ever kept at once."""
        return self._account.high_water() * self._unit_bytes

    def __setitem__(self, key: Any, value: OnHost) -> None:
        if not isinstance(value, OnHost):
            rule = (
                f"model.host of rank {self._rank} holds what was offloaded alone, got {describe(value)}; "
                "`model.host[key] = await model.offload(tensor)` moves a tensor there"
            )
            raise LawError(rule, rank=self._rank, value=value)
        if self._begun.pop(id(value), None) is not None:
            self._account.units -= value._units
        elif getattr(value, "_home", None) is not self._account:
            rule = (
                f"model.host of rank {self._rank} takes what offload gave, once, got {value!r}, which was deleted from "
                "it, or is a copy; offload the tensor again"
            )
            raise LawError(rule, rank=self._rank, layer=value.layer, value=value)
        super().__setitem__(key, value)
        self._require_room()

    def begin(self, value: OnHost) -> None:
        """Count what is on its way to the host, though it is not stored yet: else it could wait uncounted elsewhere."""
        self._begun[id(value)] = value
        self._account.units += value._units
        self._account.peak_units = max(self._account.peak_units, self._account.units)
        self._require_room()

    def _require_room(self) -> None:
        """Require that the host's memory holds all that counts."""
        if self._account.units > self._capacity_units:
            held, most = (units * self._unit_bytes / 2**30 for units in (self._account.units, self._capacity_units))
            raise OutOfMemoryError(
                f"the memory of rank {self._rank}'s host must hold all that is offloaded to it, got {held:.4g} GiB for "
                f"{most:.4g} GiB (mem2.GiB of the hardware config); offload less, shard more, or delete what was "
                "fetched from model.host",
                rank=self._rank,
            )


class HostMemory(RankState):
    """The operations on a rank's streams to and from its host.

    Attributes:
        host: what the rank keeps in the memory of its host: a dict of what `offload` gives.
        written: what it has written to the storage, as tensors that say of what.
    """

    _host: HostStore | None = None
    written: tuple[Any, ...] = ()
    _host_streams: dict[str, PeerStream]
    _last_update: Operation | None = None
    _operation_kind: type[Operation]

    @property
    def host(self) -> HostStore:
        """What the rank keeps in the memory of its host, a dict of what `offload` gives."""
        if self._host is None:
            capacity_bytes = self._of_host("host_capacity_bytes", "model.host")
            unit_bytes = self._runtime_predictor.workload.bytes_per_element / UNITS_PER_ELEMENT
            account = Account(lambda _: 0)  # what is offloaded knows its size
            of_host = account, self._rank, capacity_bytes / unit_bytes, unit_bytes
            self._host = cast(HostStore, self._make_store(HostStore, "host", *of_host))
        return self._host

    @property
    def peak_host_bytes(self) -> float:
        """The most that the rank ever kept in its host's memory, bytes."""
        return 0.0 if self._host is None else self._host.peak_bytes

    async def offload(self, v: T) -> OnHost:
        """Copy a tensor to the host's memory; free it on the device by taking it out of its store.

        Args:
            v: a tensor on the device.

        Returns:
            The copy on the host: store it in `model.host`, and give it to `fetch`.

        Raises:
            LawError: it is in host memory already.
            TensorTypeError: it is no tensor.
            HardwareConfigError: the hardware says nothing of a host.
        """
        return await self._offload(v)  # type: ignore[no-any-return]

    async def fetch(self, v: OnHost) -> Any:
        """Copy what was offloaded back to the device; the copy on the host stays until it is deleted.

        Args:
            v: what `offload` gave, from `model.host`.

        Returns:
            A tensor equal to the one that was offloaded.

        Raises:
            LawError: it is not in `model.host`, or is on the device already.
            HardwareConfigError: the hardware says nothing of a host.
        """
        return await self._fetch(v)

    async def write(self, v: OnHost) -> None:
        """Write what was offloaded to the storage, at the bandwidth that all ranks share (the config's `storage`).

        Over all ranks, what is written of a step must be a whole checkpoint: every trained weight and its state.

        Args:
            v: what `offload` gave, from `model.host`.

        Raises:
            LawError: it is not in `model.host`.
            HardwareConfigError: the hardware says nothing of a host.
        """
        await self._write(v)

    async def update_on_host(self, weight_grad: OnHost, weight: OnHost, opt_state: OnHost) -> None:
        """Take an optimizer step of what lies in the host's memory, in place, at the host's rate (see `mem2`).

        Args:
            weight_grad: gradient over all samples.
            weight: the weight.
            opt_state: its optimizer state, with the master weight where there is one.

        Raises:
            LawError: one is not in `model.host`, or the update is not legal on a device.
            HardwareConfigError: the hardware says nothing of a host.
        """
        await self._update_on_host([weight_grad, weight, opt_state])

    def _of_host(self, name: str, op: str) -> Any:
        """Return what the predictor says of the host."""
        found = getattr(self._runtime_predictor, name, None)
        if found is None:
            raise HardwareConfigError(
                f"{op} on rank {self._rank} needs the memory of a host and the link to it, of which the hardware "
                f"({type(self._runtime_predictor).__name__}) says nothing; use a hardware config with mem2, or give "
                "the predictor host_capacity_bytes and host_transfer(op, size_bytes)",
                rank=self._rank,
            )
        return found

    def _offload(self, v: Any) -> Operation:
        """Submit a copy to the host."""
        if v.__class__ not in FIELDS:
            raise _not_on_device(self, v)
        units = self._account.units_of(v)
        kept = copy_to_host(v)
        operation = self._copy(OFFLOAD, v, units, kept, v)
        self.host.begin(kept)
        return operation

    def _fetch(self, v: Any) -> Operation:
        """Submit a copy from the host."""
        self._require_stored(FETCH, v, "on the device already")
        tensor = copy_to_device(v)
        return self._copy(FETCH, v, v._units, tensor, tensor)

    def _write(self, v: Any) -> Operation:
        """Submit a write to the storage."""
        self._require_stored(WRITE, v, "not in host memory")
        tensor = copy_to_device(v)
        self.written = (*self.written, tensor)
        return self._copy(WRITE, v, v._units, None, tensor)

    def _update_on_host(self, given: list[Any]) -> Operation:
        """Submit an optimizer step by the host: it reads gradient and state, and writes state and weight."""
        for value in given:
            self._require_stored(UPDATE_ON_HOST, value, "on the device")
        if self._semantics is not None:
            raise StrategyError("steps of a strategy's own are the device's; use update", rank=self._rank)
        tensors = grad, weight, state = [copy_to_device(value) for value in given]
        laws.update(self, grad.layer, grad, weight, state)
        if any(tensor.__class__ in PIECES for tensor in tensors):
            law_of_update(self, weight, grad, state)
        laws.require_whole_matrices(self, grad.layer, weight)
        operation = self._copy(UPDATE_ON_HOST, given, grad._units + weight._units + 2 * state._units, None, grad)
        for value in given[1:]:
            value.take_step()
        self._last_update = operation
        return operation

    def _require_stored(self, op: str, v: Any, elsewhere: str) -> None:
        """Require what lies in host memory, counts there, and is not at work."""
        if not isinstance(v, OnHost):
            rule = (
                f"{op} on rank {self._rank} takes what offload gave, got {describe(v)}, which is {elsewhere}; offload "
                "it first"
            )
            raise LawError(rule, rank=self._rank, value=v)
        if self._host is None or getattr(v, "_home", None) is not self._host._account:
            rule = (
                f"{op} on rank {self._rank}: what was offloaded must be in model.host, so that its memory counts, got "
                f"{v!r}; put it there, and delete it after the {op} is submitted"
            )
            raise LawError(rule, rank=self._rank, layer=v.layer, value=v)
        last = self._last_update
        memory = None if last is None else last.launched_memory
        if last is not None and memory is not None and not memory.awaited and any(each is v for each in last.value):
            rule = f"{op} on rank {self._rank}: {v!r} is being updated by a launched update_on_host; await that first"
            raise LawError(rule, rank=self._rank, layer=v.layer, value=v)

    def _copy(self, op: str, value: Any, units: int, result: Any, tensor: Any) -> Operation:
        """Submit a copy, which waits for nobody but those before it on its stream."""
        size_bytes = units / UNITS_PER_ELEMENT * self._runtime_predictor.workload.bytes_per_element
        price: Price = self._of_host("host_transfer", op)(op, size_bytes)
        owner = self._host_stream(op)
        operation = self._operation_kind(self, op, value, owner, tensor.layer, None, None)
        operation.depart(price)
        self._rows[operation.row + SAMPLES] = samples_of(tensor)
        operation.outcome, operation.settled = result, True
        if result is not None and self.follows_tensors and hasattr(value, "_content"):
            result._content = value._content
        return operation

    def _host_stream(self, op: str) -> PeerStream:
        """Return the stream of one direction."""
        if "_host_streams" not in self.__dict__:
            self._host_streams = {}
        if op not in self._host_streams:
            self._host_streams[op] = PeerStream(op, None)
        return self._host_streams[op]


def _not_on_device(model: RankState, value: Any) -> Exception:
    """Return the error for what cannot be offloaded."""
    if isinstance(value, OnHost):
        rule = f"offload on rank {model._rank}: {value!r}; it need not be offloaded again"
        return LawError(rule, rank=model._rank, layer=value.layer, value=value)
    return TensorTypeError(
        f"offload on rank {model._rank} takes a tensor, got {type(value).__name__} ({value!r:.80})"
        + ("; give it `await work` instead of `work`" if isinstance(value, Launched) else ""),
        rank=model._rank,
        value=value,
    )
