"""A backend that waits for its device for a limited time only: what hangs is a failure, and no longer a hang.

A call to a driver cannot be stopped from outside, so each is made by a thread of its own. Where it does not return in
time, the thread is left behind, and the device is never asked again. Left out: time that a device needs to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar, final

from numpy.typing import NDArray

from minitrain.errors import UsageError
from minitrain.machine.devices.operations import Operation, is_number
from minitrain.machine.heterogeneous.abstraction_layer import HardwareBackend, Timed
from minitrain.machine.heterogeneous.operations import OperationKind, Options

T = TypeVar("T")


@final
class LimitedBackend:
    """A backend whose calls take a limited time.

    Args:
        inner: what computes.
        limit_s: how long a call may take, s; the first one may compile.

    Raises:
        UsageError: the limit is no number above 0.

    Example:
        >>> from minitrain.heterogeneous import HostBackend
        >>> LimitedBackend(HostBackend("numpy"), limit_s=60).name
        'numpy'
    """

    def __init__(self, inner: HardwareBackend, limit_s: float) -> None:
        if not is_number(limit_s) or limit_s == 0:
            raise UsageError(f"limit_s is how many seconds a call may take, above 0, got {limit_s!r}", limit_s=limit_s)
        self.inner, self.limit_s = inner, limit_s
        self.name, self.is_priced = inner.name, inner.is_priced
        self.reason_unavailable, self.reason_unsupported = inner.reason_unavailable, inner.reason_unsupported
        self._hung = False

    def put(self, array: NDArray[Any]) -> Any:
        """Return an array in the device's memory.

        Raises:
            TimeoutError: the device did not answer in time, now or before.
        """
        return self._in_time(self.inner.put, array)

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array in the host's memory; errors as for `put`."""
        return self._in_time(self.inner.get, array)

    def execute(self, kind: OperationKind, operands: Sequence[Any], options: Options, cost: Operation) -> Timed:
        """Return the result of an operation, and how long it took, s; errors as for `put`."""
        return self._in_time(self.inner.execute, kind, operands, options, cost)

    def _in_time(self, call: Callable[..., T], *given: Any) -> T:
        if self._hung:
            raise TimeoutError("it has not answered before")
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call(*given))
            except BaseException as error:  # whatever it is, it belongs to the caller
                answer.set_exception(error)

        Thread(target=run, name=self.name, daemon=True).start()
        try:
            return answer.result(self.limit_s)
        except TimeoutError:
            if answer.done():  # the device's own
                raise
            self._hung = True
            raise TimeoutError(f"no answer in {self.limit_s:g} s") from None
