"""A compiled table of subscriptions: what `compile` makes and `match` takes."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidings.model.domain import Domain
from tidings.pipeline.build.event_schema import check_events, domain_of
from tidings.pipeline.build.index_directory import IndexDirectory, Layout, Manifest
from tidings.pipeline.build.placement_choice import (
    PlacementOptions,
    checked_name,
    executor_cores,
    executor_memory,
    parse_bytes,
)
from tidings.pipeline.build.shard_building import BuiltLayout, IndexBuilder
from tidings.pipeline.build.table_reading import Contents, checked, contents_of, domain_name, id_type
from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.steps.match_metrics import Measures, measured_lines
from tidings.systems.interface import AUTO
from tidings.systems.planner.planner import PlacementPlan

log = logging.getLogger("tidings.pipeline")

EVENTS_SAMPLE = 2_000


def compile(
    subscriptions: DataFrame,
    directory: str | os.PathLike[str] | None = None,
    *,
    domain: Any = None,
    placement: str = AUTO,
    sample: Any = None,
    memory: int | str | None = None,
    dimensions: list[str] | None = None,
    segments: int | None = None,
    policy: str | None = None,
) -> Index:
    """Compile a table of subscriptions, with the columns id, filter and where wanted domain, into an index.

    The index is written to `directory` as a new version, or found there where the table has not
    changed; without a directory it lives as long as this process. `domain` describes the events: a
    Domain, a DataFrame of them, a schema, or a dict of types by name. Without one, the first events
    that are matched give it, and the work waits for them.

    `placement` is the name of one of `tidings.systems`, or "auto": what the planner finds cheapest, of
    one placement or several. For "auto", `memory` is what an executor has for its part of the index (as
    2g), by default what Spark is configured with; `sample` are typical events, in a DataFrame or Arrow
    table, which improve the estimates. `dimensions`, `segments` and `policy` are of bluedove, and by default chosen
    by what the filters ask; the policies are those of `tidings.systems.bluedove.forwarding`.
    """
    checked_name(placement)
    options = PlacementOptions(
        None if memory is None else parse_bytes(memory),
        None if dimensions is None else tuple(dimensions),
        segments,
        policy,
    )
    index = Index(subscriptions, directory, options, sample=sample)
    if domain is not None:
        index._compile_for(domain_of(domain, "events"), placement)
    return index


@dataclass(frozen=True)
class _Compiled:
    version: int
    manifest: Manifest
    builder: IndexBuilder
    plan: PlacementPlan | None  # made when it is first needed


class Index:
    """The subscriptions of one table, compiled for the events of one domain. BuiltLayout by `compile`."""

    def __init__(
        self,
        table: DataFrame,
        directory: str | os.PathLike[str] | None,
        options: PlacementOptions,
        *,
        sample: Any = None,
    ) -> None:
        self._table = checked(table)
        self._directory = IndexDirectory(directory if directory is not None else _temporary())
        self._options = options
        self._sample = sample
        self._compiled: _Compiled | None = None
        self._layouts: dict[str, Layout] = {}
        self._measures: dict[str, Measures] = {}

    @property
    def version(self) -> int:
        """The number of this state of the table: it only grows, and stays while the table does not change."""
        return self._ready().version

    @property
    def domain(self) -> Domain:
        """The domain that the filters were read in."""
        return self._ready().builder.domain

    @property
    def subscriptions(self) -> int:
        """How many can be matched."""
        return self._ready().manifest.subscriptions

    @property
    def rejected(self) -> int:
        """How many cannot."""
        return self._ready().manifest.rejected

    @property
    def placement(self) -> str:
        """Which placement `auto` stands for; "planned" if it is several."""
        return self._plan().placement

    @property
    def spark(self) -> SparkSession:
        """The session that the table is of."""
        return self._table.sparkSession

    @property
    def directory(self) -> str:
        return str(self._directory.path)

    @property
    def rejects(self) -> DataFrame:
        """The subscriptions that cannot be matched: id, reason, and the position in the filter if it is known."""
        compiled = self._ready()
        table = pq.read_table(self._directory.folder(compiled.version) / "rejects.parquet")
        schema = f"id {compiled.manifest.id_type}, reason string, position int"
        return self.spark.createDataFrame(table if len(table) else [], schema)

    def explain(self) -> str:
        """What the index holds, which placements serve it and why, and what they were expected to cost and did."""
        compiled = self._ready()
        manifest = compiled.manifest
        layouts = [
            f"{name}: {len(one.files):,} files, {one.bytes / 2**20:,.1f} MiB" for name, one in self._layouts.items()
        ]
        lines = [
            f"{manifest.subscriptions:,} subscriptions to '{self.domain.name}', {manifest.rejected:,} rejected, "
            f"{manifest.elsewhere:,} to other domains",
            f"filters read {', '.join('.'.join(path) for path in manifest.reads) or 'no attribute'}",
            *([] if compiled.plan is None else compiled.plan.lines()),
            *(f"built: {line}" for line in layouts),
            *self._measured(),
        ]
        return "\n  ".join([f"index version {compiled.version}", *lines])

    def __repr__(self) -> str:
        if self._compiled is None:
            return "<Index: the first events that are matched give its domain>"
        return f"<Index version {self.version}: {self._compiled.manifest.subscriptions:,} subscriptions>"

    # ------------------------------------------------------------------ for the steps after

    def compiled_for(self, schema: StructType, domain: Domain | None, placement: str) -> tuple[Manifest, Layout]:
        """What serves events of a schema; refuses events that the index was not compiled for."""
        if self._compiled is None:
            self._compile_for(domain or domain_of(schema, domain_name(self._table)), placement)
        compiled = self._ready()
        check_events(schema, self.domain, [tuple(path) for path in compiled.manifest.reads])
        return compiled.manifest, self._layout(self._plan().placement if placement == AUTO else placement)

    def measures(self, placement: str) -> Measures:
        """Where tasks count what matching under a placement takes."""
        if placement not in self._measures:
            self._measures[placement] = Measures.on(self.spark.sparkContext)
        return self._measures[placement]

    def _measured(self) -> list[str]:
        """What matching has taken since, beside what was expected."""
        lines = []
        for name, measures in self._measures.items():
            if measures.counts:
                lines += measured_lines(name, self._layouts[name], measures.counts)
        return lines

    def _compile_for(self, domain: Domain, placement: str) -> None:
        contents = contents_of(self._table, domain, asdict(self._options))
        builder = IndexBuilder(self._table, domain, contents, self._options, self._typical_events())
        latest = self._directory.latest()
        if latest is None or latest[1].fingerprint != contents.fingerprint:
            latest = self._write(builder, contents, placement)
        version, manifest = latest
        plan = None if manifest.plan is None else PlacementPlan.from_dict(manifest.plan)
        self._compiled = _Compiled(version, manifest, builder, plan)
        log.info("%s", self.explain())

    def _write(self, builder: IndexBuilder, contents: Contents, placement: str) -> tuple[int, Manifest]:
        plan = self._planned(builder) if placement == AUTO else None
        chosen = placement if plan is None else plan.placement
        with self._directory.staged() as staged:
            made = builder.build(chosen, staged, plan)
            pq.write_table(_rejects(made, id_type(self._table)), staged / "rejects.parquet")
            manifest = Manifest(
                fingerprint=contents.fingerprint,
                domain=builder.domain.to_dict(),
                id_type=id_type(self._table),
                subscriptions=contents.subscriptions - made.rejected,
                rejected=made.rejected,
                elsewhere=contents.elsewhere,
                reads=[list(path) for path in sorted(made.reads)],
                plan=None if plan is None else plan.to_dict(),
            )
            return self._directory.publish(staged, manifest, chosen, made.layout), manifest

    def _planned(self, builder: IndexBuilder) -> PlacementPlan:
        return builder.plan(self._options.memory or executor_memory(self.spark), executor_cores(self.spark))

    def _plan(self) -> PlacementPlan:
        """What `auto` stands for, found out now where the index was compiled for one placement."""
        compiled = self._ready()
        if compiled.plan is None:
            compiled = replace(compiled, plan=self._planned(compiled.builder))
            self._compiled = compiled
        assert compiled.plan is not None
        return compiled.plan

    def _layout(self, placement: str) -> Layout:
        """The files that serve a placement, built where they are missing, on their way to the executors."""
        if placement not in self._layouts:
            compiled = self._ready()
            layout = self._directory.layout(compiled.version, placement)
            if layout is None:
                with self._directory.staged() as staged:
                    layout = compiled.builder.build(placement, staged, compiled.plan).layout
                    self._directory.add_layout(staged, compiled.version, placement, layout)
            self._ship(layout, compiled.version)
            self._layouts[placement] = layout
        return self._layouts[placement]

    def _ship(self, layout: Layout, version: int) -> None:
        """Have Spark bring a layout's files to every executor: they need share no disk with the driver."""
        context = self.spark.sparkContext
        there = {path.rsplit("/", 1)[-1] for path in context.listFiles}
        for file in layout.files:
            if file.name not in there:
                context.addFile(str(self._directory.folder(version).absolute() / file.name))

    def _typical_events(self) -> pa.Table | None:
        if isinstance(self._sample, DataFrame):
            self._sample = self._sample.limit(EVENTS_SAMPLE).toArrow()
        return None if self._sample is None else self._sample.slice(0, EVENTS_SAMPLE)

    def _ready(self) -> _Compiled:
        if self._compiled is None:
            raise PipelineError(
                "the index has no domain yet: the first events that are matched give it, or compile(…, domain=…)"
            )
        return self._compiled


def _rejects(made: BuiltLayout, id_type: str) -> pa.Table:
    ids = pa.string() if id_type == "string" else pa.int64()
    schema = pa.schema([("id", ids), ("reason", pa.string()), ("position", pa.int32())])
    return pa.concat_tables([schema.empty_table(), *made.rejects])


def _temporary() -> str:
    """A directory that lives as long as this process: executors may ask the driver for a file at any time."""
    directory = tempfile.mkdtemp(prefix="tidings-index-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
