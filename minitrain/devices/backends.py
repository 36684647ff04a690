"""The libraries with which calibration measures a machine: NumPy, JAX or torch, each on the device that it runs on.

A backend makes functions without arguments that run one kernel and return when it is done: a matrix multiplication, a
pass over memory, a polynomial of some degree (much arithmetic on few bytes), and next to nothing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable
from typing import Any, Protocol, final

from minitrain.errors import UsageError

Kernel = Callable[[], object]
BACKENDS = ("jax", "numpy", "torch")
_FLOAT_BYTES = 4


class Backend(Protocol):
    """The interface between calibration and a library."""

    name: str
    device: str
    is_cpu: bool

    def matmul(self, size: int) -> Kernel:
        """Return a multiplication of two square matrices of single precision."""
        ...

    def stream(self, num_bytes: int) -> Kernel:
        """Return a pass that reads half of some bytes and writes the other half."""
        ...

    def polynomial(self, num_bytes: int, degree: int) -> Kernel:
        """Return the same traffic with 2 FLOPs an element for each degree."""
        ...

    def nothing(self) -> Kernel:
        """Return a program that does next to nothing."""
        ...

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return a function of arrays with its arguments, compiled where the library compiles."""
        ...


@final
class NumpyBackend:
    """NumPy on the CPU; a polynomial is one pass over memory for each operation."""

    name = "numpy"
    is_cpu = True

    def __init__(self) -> None:
        self.device = cpu_name()

    def matmul(self, size: int) -> Kernel:
        """Return a multiplication into an array that is there."""
        import numpy as np  # noqa: PLC0415

        x, y = np.ones((size, size), np.float32), np.empty((size, size), np.float32)
        return lambda: np.matmul(x, x, out=y)

    def stream(self, num_bytes: int) -> Kernel:
        """Return a scaling into an array that is there."""
        import numpy as np  # noqa: PLC0415

        x = np.ones(max(1, num_bytes // 2 // _FLOAT_BYTES), np.float32)
        y = np.empty_like(x)
        return lambda: np.multiply(x, np.float32(2), out=y)

    def polynomial(self, num_bytes: int, degree: int) -> Kernel:
        """Return Horner's rule in blocks that stay in the first cache."""
        import numpy as np  # noqa: PLC0415

        x = np.full(max(1, num_bytes // 2 // _FLOAT_BYTES), 0.5, np.float32)
        blocks = np.array_split(x, max(1, x.size // 2048))

        def run() -> None:
            for block in blocks:
                y = np.ones_like(block)
                for _ in range(degree):
                    y *= block
                    y += 1

        return run

    def nothing(self) -> Kernel:
        """Return an addition of two numbers."""
        import numpy as np  # noqa: PLC0415

        x, y = np.ones(1, np.float32), np.empty(1, np.float32)
        return lambda: np.add(x, x, out=y)

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return the function as it is."""
        return lambda: function(*arguments)


@final
class JaxBackend:
    """JAX on its default device, compiled, each call waited for."""

    name = "jax"

    def __init__(self) -> None:
        import jax  # noqa: PLC0415 - JAX is heavy

        found = jax.devices()[0]
        self.is_cpu = found.platform == "cpu"
        self.device = cpu_name() if self.is_cpu else found.device_kind

    def matmul(self, size: int) -> Kernel:
        """Return a compiled multiplication."""
        import jax.numpy as jnp  # noqa: PLC0415

        return self.compiled(lambda x, y: x @ y, jnp.ones((size, size)), jnp.ones((size, size)))

    def stream(self, num_bytes: int) -> Kernel:
        """Return a compiled scaling."""
        return self.polynomial(num_bytes, 1)

    def polynomial(self, num_bytes: int, degree: int) -> Kernel:
        """Return Horner's rule as one fused kernel."""
        import jax.numpy as jnp  # noqa: PLC0415

        return self.compiled(horner(degree), jnp.full(max(1, num_bytes // 2 // _FLOAT_BYTES), 0.5))

    def nothing(self) -> Kernel:
        """Return an addition of two numbers."""
        import jax.numpy as jnp  # noqa: PLC0415

        return self.compiled(lambda x: x + 1, jnp.ones(()))

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return the compiled function, waited for."""
        import jax  # noqa: PLC0415

        ready = jax.jit(function).lower(*arguments).compile()
        wait: Callable[[Any], object] = jax.block_until_ready
        return lambda: wait(ready(*arguments))


@final
class TorchBackend:
    """torch, eagerly, on a GPU if there is one."""

    name = "torch"

    def __init__(self) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra

        self._torch: Any = torch
        self.is_cpu = not torch.cuda.is_available()
        self._place = "cpu" if self.is_cpu else "cuda"
        self.device = cpu_name() if self.is_cpu else str(torch.cuda.get_device_name())

    def matmul(self, size: int) -> Kernel:
        """Return a multiplication, waited for."""
        x = self._torch.ones((size, size), device=self._place)
        return self.compiled(lambda: x @ x)

    def stream(self, num_bytes: int) -> Kernel:
        """Return a scaling, waited for."""
        x = self._torch.ones(max(1, num_bytes // 2 // _FLOAT_BYTES), device=self._place)
        return self.compiled(lambda: x * 2)

    def polynomial(self, num_bytes: int, degree: int) -> Kernel:
        """Return Horner's rule; torch runs a pass over memory for each operation, so blocks stay in a cache."""
        x = self._torch.full((max(1, num_bytes // 2 // _FLOAT_BYTES),), 0.5, device=self._place)
        blocks = x.split(2048) if self.is_cpu else (x,)
        return self.compiled(lambda: [horner(degree)(block) for block in blocks])

    def nothing(self) -> Kernel:
        """Return an addition of two numbers."""
        x = self._torch.ones((), device=self._place)
        return self.compiled(lambda: x + 1)

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return the function, waited for."""

        def run() -> None:
            function(*arguments)
            if not self.is_cpu:
                self._torch.cuda.synchronize()

        return run


def horner(degree: int) -> Callable[[Any], Any]:
    """Return a polynomial of some degree: 2 FLOPs an element for each."""

    def polynomial(x: Any) -> Any:
        y = x
        for _ in range(degree):
            y = y * x + 1
        return y

    return polynomial


def find_backend(name: str | None) -> Backend:
    """Return a backend by its name.

    Args:
        name: "jax", "numpy" or "torch".

    Raises:
        UsageError: there is no such backend, or its library is not installed.
    """
    made: dict[str, Callable[[], Backend]] = {"jax": JaxBackend, "numpy": NumpyBackend, "torch": TorchBackend}
    if name is None or name not in made:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}", backend=name)
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"backend {name!r} needs {name}, which is not installed; use another one, or install it")
    return made[name]()


def cpu_name() -> str:
    """Return what the operating system calls the processor."""
    return platform.processor() or platform.machine() or "a CPU"


def num_cpus() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
