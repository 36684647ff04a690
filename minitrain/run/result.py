"""The result of a simulated step: `Run`, its event logs and the figures that are read from them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.analysis.labels import GIB, duration
from minitrain.events import PASSES, Event, MemoryChange, Outage
from minitrain.run.data_frames import columns_of, data_frame
from minitrain.run.device_kind_figures import DeviceKindFigures
from minitrain.run.device_memory import DeviceMemoryFigures
from minitrain.run.energy_figures import EnergyFigures
from minitrain.run.memory_reports import MemoryOutsideStores, OutOfMemory
from minitrain.run.saved_runs import plain, read_run, save_run
from minitrain.run.step_figures import StepFigures
from minitrain.run.sureness import SurenessFigures
from minitrain.run.trained_model import TrainedModel, described, figures_of
from minitrain.run.transformer_figures import TransformerFigures
from minitrain.workloads.matmul import SPECIFIED

if TYPE_CHECKING:
    from minitrain.analysis.breakdown import Breakdown, PassTimes, TypeTotal
    from minitrain.analysis.explanation import Explanation
    from minitrain.analysis.timeline import Timeline, Trace
    from minitrain.hardware.data_sheet import DataSheet
    from minitrain.rank.model import Model
    from minitrain.run.device_kinds import DeviceKind


@dataclass(frozen=True)
class Run(StepFigures, EnergyFigures, DeviceKindFigures, DeviceMemoryFigures, TransformerFigures, SurenessFigures):
    """One simulated training step of all ranks.

    Args:
        strategy: its name.
        world_size: number of ranks.
        num_layers: layers of the trained model.
        global_batch_size: samples of the step.
        hardware: name of the hardware config.
        options: the strategy's options.
        logs: the events of each rank, in program order.
        peak_memory_per_rank: high-water mark of each rank, elements.
        bytes_per_element: size of an element.
        useful_flop: floating-point operations that the step has to do.
        peak_flop_per_s: the device's peak rate, the mean of all ranks' where they differ; None where durations were
            given by hand.
        capacity_bytes: the device's memory (what processes may use of it, for a transformer); None likewise, or where
            ranks have different ones.
        oom: where and when the device's memory was exceeded, or None.
        memory_journals: every change of every store, one list a rank, if they were asked for.
        held_outside: what was held outside the stores; None unless the run was strict.
        network: how transfers were priced: "hierarchical", "measured", or "flat" where all pairs of ranks were alike.
        priced_by: "roofline", or what else priced operations: "kernels", a platform, a table of measured layers.
        num_nodes: how many units of the smallest network tier the ranks sit in.
        trained_model: the transformer that was trained; None for other workloads.
        models: the model of each rank; empty for a run that was read from a file.
        sheets: the data sheet of each rank's device, or one for all; empty for a run that was read from a file.
        links: what shared links carried, and why transfers took longer than their price (see
            `minitrain.platform.replayed_runs.LinkUse`); None unless they were timed so.
        tokens_per_sample: what a sample counts as; None where the workload does not say.
        memory_by_kind: bytes of weights, gradients, optimizer, activations, logits and buffers (communication in
            flight) on the rank that held most, when it did; None where layers are alike or the run was strict.
        meshes: size by axis of each mesh that the ranks have made.
        outages: when the step was interrupted by devices that died, in order.
        needed_memory_bytes: what the fullest device must hold (`device_memory`); None where tensors alone count.
        peak_host_memory_bytes: the most that any rank kept in its host's memory.
        prepared: what was simulated (`minitrain.run.prepared_run.PreparedRun`), to price it otherwise; None for a run
            that was read from a file, or in which devices died.
        device_kinds: which ranks have which device, of a run on a cluster; empty where all devices are alike.
        workload: name of what was trained: "specified", "dense", or what a transformer or a workload is called.
    """

    strategy: str
    world_size: int
    num_layers: int
    global_batch_size: int
    hardware: str
    options: Mapping[str, Any]
    logs: Sequence[Sequence[Event]] = field(repr=False)
    peak_memory_per_rank: list[float] = field(repr=False)
    bytes_per_element: int
    useful_flop: float
    peak_flop_per_s: float | None
    capacity_bytes: float | None
    oom: OutOfMemory | None = None
    memory_journals: Sequence[Sequence[MemoryChange]] = field(default=(), repr=False)
    held_outside: MemoryOutsideStores | None = None
    network: str = "flat"
    num_nodes: int = 1
    priced_by: str = "roofline"
    trained_model: TrainedModel | None = None
    models: Sequence[Model] = field(default=(), repr=False, compare=False)
    sheets: Sequence[DataSheet | None] = field(default=(), repr=False, compare=False)
    tokens_per_sample: int | None = field(default=None, repr=False, compare=False)
    links: Any = field(default=None, repr=False, compare=False)
    memory_by_kind: Mapping[str, float] | None = field(default=None, repr=False)
    meshes: Sequence[Mapping[str, int]] = field(default=(), repr=False, compare=False)
    needed_memory_bytes: float | None = field(default=None, repr=False)
    peak_host_memory_bytes: float = field(default=0.0, repr=False)
    outages: Sequence[Outage] = field(default=(), repr=False)
    prepared: Any = field(default=None, repr=False, compare=False)
    device_kinds: Sequence[DeviceKind] = field(default=(), repr=False)
    workload: str = SPECIFIED

    @cached_property
    def timeline(self) -> Timeline:
        """The event logs as columns."""
        from minitrain.analysis.timeline import as_timeline  # noqa: PLC0415  (numpy only when somebody looks)

        return self._named(as_timeline(self.logs), range(self.world_size))

    def _named(self, timeline: Timeline, ranks: Sequence[int]) -> Timeline:
        """Return columns that know what the layers are called, and which devices the rows have.

        Args:
            timeline: the columns.
            ranks: the rank of each row.
        """
        if self.trained_model:
            timeline = replace(timeline, layer_names=self.trained_model.layer_names)
        if self.outages:
            timeline = replace(timeline, outages=tuple(self.outages))
        return self._with_devices(timeline, ranks) if self.device_kinds else timeline

    @property
    def _trace(self) -> Trace:
        """What figures are read from: the engine's own logs as they are, other logs as columns, which are made once."""
        from minitrain.analysis.breakdown import are_flat  # noqa: PLC0415

        logs = self.class_logs
        return logs if are_flat(logs) and self.loads_alike else self.step_timeline_of_classes

    @cached_property
    def breakdown(self) -> Breakdown:
        """The split of each rank's step time into computing, exposed communication and waiting, s."""
        from minitrain.analysis.breakdown import breakdown  # noqa: PLC0415

        return breakdown(self._trace, self.step_end)

    @property
    def peak_memory(self) -> float:
        """The highest memory of all ranks at any moment, elements."""
        return max(self.peak_memory_per_rank)

    @property
    def peak_memory_bytes(self) -> float:
        """The highest memory of all ranks at any moment, bytes."""
        return self.peak_memory * self.bytes_per_element

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (Chowdhery et al. 2022): useful FLOP over peak rate x ranks x step time."""
        if self.peak_flop_per_s is None:
            return None
        possible_flop = self.peak_flop_per_s * self.world_size * self.step_time
        return self.useful_flop / possible_flop if possible_flop else 0.0

    @property
    def bubble_fraction(self) -> float:
        """Share of world_size x step time spent waiting."""
        return self.breakdown.bubble_fraction

    @property
    def exposed_comm_fraction(self) -> float:
        """Share of world_size x step time spent communicating with no compute beside it."""
        return self.breakdown.exposed_comm_fraction

    @property
    def num_tokens(self) -> int | None:
        """Tokens of the batch; None for workloads that count none."""
        model = self.trained_model
        each = self.tokens_per_sample if model is None else model.seq_len
        return None if each is None else self.global_batch_size * each

    @cached_property
    def _passes(self) -> PassTimes:
        """When each rank passes microbatches through its layers."""
        from minitrain.analysis.breakdown import pass_times  # noqa: PLC0415

        return pass_times(self._trace, PASSES)

    @cached_property
    def span_bubble(self) -> float:
        """The longest idle time of a rank between its first and its last pass through a layer, s.

        This is the bubble that zero-bubble papers quote (Qi et al. 2023): load and update are outside of it.
        """
        passes = self._passes
        return float((passes.last_end - passes.first_start - passes.busy).max(initial=0.0))

    @cached_property
    def makespan_bubble(self) -> float:
        """Time from the first pass of any rank to the last, less the compute of the busiest rank, s."""
        passes = self._passes
        if not passes.busy.size:
            return 0.0
        return float(passes.last_end.max() - passes.first_start.min() - passes.busy.max())

    @property
    def num_events(self) -> int:
        """Number of events of all ranks."""
        return sum(len(log) for log in self.class_logs) * self.num_ranks_a_class

    @cached_property
    def by_type(self) -> dict[str, TypeTotal]:
        """Number of events of each type on all ranks, and the time that they worked, s."""
        from minitrain.analysis.breakdown import totals_by_type  # noqa: PLC0415

        return totals_by_type(self.class_logs, self.num_ranks_a_class)

    @property
    def events(self) -> list[Event]:
        """All events, ordered by (time, rank)."""
        in_order = (sorted(log, key=attrgetter("time")) for log in self.logs)
        return list(heapq.merge(*in_order, key=attrgetter("time", "rank")))

    def summary(self) -> dict[str, Any]:
        """Return the run's figures, ready for JSON: times in s, sizes as their names say."""
        return {
            "strategy": self.strategy,
            "world_size": self.world_size,
            "num_layers": self.num_layers,
            "global_batch_size": self.global_batch_size,
            "hardware": self.hardware,
            "network": self.network,
            "workload": described(self.workload),
            "options": {name: plain(value) for name, value in self.options.items()},
            "step_time_s": self.step_time,
            "load_time_s": self.load_time,
            "peak_memory_elements": self.peak_memory,
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "out_of_memory": None if self.oom is None else str(self.oom),
            "mfu": self.mfu,
            "bubble_fraction": self.bubble_fraction,
            "exposed_comm_fraction": self.exposed_comm_fraction,
            "span_bubble_s": self.span_bubble,
            "makespan_bubble_s": self.makespan_bubble,
            "held_outside_bytes": self.held_outside and self.held_outside.elements * self.bytes_per_element,
            "num_events": self.num_events,
            **(figures_of(self) if self.trained_model else {}),
            **self._summary_by_kind(),
            "error": None,
        }

    def save(self, path: str | PathLike[str], *, every_rank: bool = True) -> None:
        """Write the run to a file that `load_run` reads: see `minitrain.run.saved_runs` for the format.

        Args:
            path: where to.
            every_rank: write the events of every rank; otherwise those of ranks that did the same once, and then no
                journals of memory.
        """
        repeated = () if every_rank else self.repeated_ranks()
        save_run(self, path, repeated or ())

    def figure(self) -> Any:
        """Return a Plotly figure: what every rank does, over the memory it holds, on one time axis."""
        from minitrain.trace.gantt import figure  # noqa: PLC0415  (plotly only when somebody looks)
        from minitrain.trace.notebook_figure import NotebookFigure  # noqa: PLC0415
        from minitrain.trace.run_folder import view_of  # noqa: PLC0415

        return NotebookFigure(figure(self.drawn, view_of(self), self.drawn_journals), self._repr_html_)

    def write_html(self, path: str | PathLike[str], include_plotlyjs: bool | str = True) -> Path:
        """Write the figure as one page that opens without internet, and return its path.

        Args:
            path: where to.
            include_plotlyjs: True for a page that needs no other file, "directory" or "parent" to share a
                "plotly.min.js" with other pages of its folder or of the one above.
        """
        from minitrain.trace.page import write_html  # noqa: PLC0415
        from minitrain.trace.run_folder import view_of  # noqa: PLC0415

        return write_html(Path(path), self.drawn, view_of(self), include_plotlyjs, self.drawn_journals)

    def write_chrome_trace(self, path: str | PathLike[str]) -> Path:
        """Write the events as Chrome Trace Event JSON, for ui.perfetto.dev, and return the path."""
        from minitrain.trace.chrome import write_chrome_trace  # noqa: PLC0415

        return write_chrome_trace(Path(path), self.timeline, self.bytes_per_element, self.memory_journals)

    def explain(self) -> Explanation:
        """Return why every rank waits, what sets the step time, what would help, and what fills the memory."""
        from minitrain.analysis.explanation import Explanation  # noqa: PLC0415

        line, journals = self.step_timeline, self.memory_journals
        return Explanation(line, self.bytes_per_element, self.step_end, self.strategy, self.options, journals)

    def to_pandas(self) -> Any:
        """Return all events as a pandas DataFrame, ordered by (time, rank), a column for each field of `Event`.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(columns_of(self.events))

    def __repr__(self) -> str:
        from minitrain.trace.run_folder import conditions  # noqa: PLC0415

        step = f"{duration(self.step_time)}{self.headline_sureness}, peak {self.peak_memory_bytes / GIB:.4g} GiB"
        kind = "Run" if self.is_folded else type(self).__name__  # a folded run is as good as another
        return f"<{kind} {self.strategy}: {conditions(self)}, step {step}>"

    def _repr_html_(self) -> str:
        """Show the figures and a picture that needs no script, which an exported notebook keeps."""
        return f"{self._facts_html()}{self._mime_bundle().get('text/html', '')}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:  # noqa: ARG002  (IPython's names)
        """Show the figure in a notebook."""
        bundle = self._mime_bundle()
        html = f"{self._facts_html()}{bundle.get('text/html', '')}"
        return {"text/plain": repr(self), **bundle, "text/html": html}

    def _mime_bundle(self) -> dict[str, Any]:
        """Return the pictures of the run by MIME type."""
        from minitrain.trace.excerpt import picture_of_first_ranks  # noqa: PLC0415
        from minitrain.trace.page import mime_bundle  # noqa: PLC0415
        from minitrain.trace.run_folder import view_of  # noqa: PLC0415

        bundle = mime_bundle(self.drawn, view_of(self), self.drawn_journals)
        return bundle if "text/html" in bundle else {**bundle, "text/html": picture_of_first_ranks(self, view_of(self))}

    def _facts_html(self) -> str:
        """Return title and figures of the run as HTML."""
        from minitrain.trace.run_folder import view_of  # noqa: PLC0415

        return f"<p><b>{escape(view_of(self).title)}</b><br>{escape(', '.join(view_of(self).facts))}</p>"


def load_run(path: str | PathLike[str]) -> Run:
    """Read a run that `Run.save` wrote.

    Everything in the file is validated, in time and memory that are bounded by its size.

    Raises:
        UsageError: the file is missing, damaged, or of an unknown version; the first faults are named by line and key.
    """
    return Run(**read_run(path))
