"""A processor: how many FLOP a second its matrix and vector units reach, by datatype and operation size.

Modelled is the peak of each unit times an efficiency that falls for small operations. Left out are clocks,
power, caches and the shape of a matmul: whatever they cost belongs into the efficiency rows of the config.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, final

from minitrain.errors import HardwareConfigError
from minitrain.hardware.curve import Rows, efficiency_at

Unit = Literal["matrix", "vector"]


@final
@dataclass(frozen=True, slots=True)
class Rate:
    """The speed of one unit for one datatype.

    Args:
        tflops: peak, in 1e12 FLOP/s.
        gflops_efficiency: rows `(lower bound in 1e9 FLOP, share of the peak)`, bounds strictly descending
            to 0.
    """

    tflops: float
    gflops_efficiency: Rows

    @property
    def peak_flop_per_s(self) -> float:
        """Return the peak in FLOP/s."""
        return self.tflops * 1e12

    def throughput(self, flops: float) -> float:
        """Return the speed, in FLOP/s, that an operation of `flops` FLOP reaches."""
        return self.peak_flop_per_s * efficiency_at(self.gflops_efficiency, flops, 1e9)


@final
@dataclass(frozen=True, slots=True)
class Processor:
    """The two compute units of one device.

    Args:
        matrix: rate by datatype of the unit that multiplies matrices.
        vector: rate by datatype of the unit for everything else.
    """

    matrix: Mapping[str, Rate] = field(hash=False)
    vector: Mapping[str, Rate] = field(hash=False)

    def __post_init__(self) -> None:
        """Keep read-only copies, so that a frozen value cannot be changed through its mappings."""
        object.__setattr__(self, "matrix", MappingProxyType(dict(self.matrix)))
        object.__setattr__(self, "vector", MappingProxyType(dict(self.vector)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        return Processor, (dict(self.matrix), dict(self.vector))

    def throughput(self, datatype: str, flops: float, *, unit: Unit = "matrix") -> float:
        """Return the speed an operation reaches.

        Args:
            datatype: key of the config's entry, such as "float16".
            flops: size of the operation, in FLOP.
            unit: "matrix" or "vector".

        Returns:
            FLOP/s: peak times the efficiency of the first row whose bound the operation reaches.

        Raises:
            HardwareConfigError: the config has no entry for this datatype.
            UsageError: `flops` is negative or not a number.
        """
        return self._rate(datatype, unit).throughput(flops)

    def peak(self, datatype: str, *, unit: Unit = "matrix") -> float:
        """Return the peak in FLOP/s of a datatype (what MFU divides by); errors as for `throughput`."""
        return self._rate(datatype, unit).peak_flop_per_s

    def _rate(self, datatype: str, unit: Unit) -> Rate:
        """Return the entry of a datatype, or explain what there is."""
        rates = self.vector if unit == "vector" else self.matrix
        try:
            return rates[datatype]
        except KeyError:
            known = ", ".join(rates) or "nothing"
            raise HardwareConfigError(
                f"the config must give a rate for each datatype used: {unit}.{datatype} is missing "
                f"(it has {known}); add {unit}.{datatype} with tflops and gflops_efficiency",
                datatype=datatype,
                unit=unit,
            ) from None
