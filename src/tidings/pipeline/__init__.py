"""Match on Spark: one call, batch or stream, one machine or a cluster.

    session      a Spark session that is ready, Java included
    compile      a table of subscriptions → an index, versioned and kept in files
    match        events → events with the subscriptions that they satisfy
    stream       the same as events come and subscriptions change, into a sink, each match once
    backtest     what a draft filter would have delivered over stored events
    analyse      which subscriptions never match, which values are crowded, what each subscriber costs

    index = pipeline.compile(subscriptions, "index/")
    matched = events.transform(pipeline.match, subscriptions=index)

runtime      Spark itself: the session, Java, workarounds
build        from a table of subscriptions to an index
steps        route, match, combine: the steps of a match, in batch and stream
sources      where events come from
sinks        where matches go
streams      queries that do not end, and subscriptions that change meanwhile
jobs         batch jobs: match files, backtest, analyse, adapt
job_errors   what can go wrong with a job
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_session import session

if TYPE_CHECKING:
    from tidings.pipeline.build.compiled_index import Index, compile
    from tidings.pipeline.build.event_schema import domain_of
    from tidings.pipeline.jobs.backtesting import Backtest, backtest, filter_of
    from tidings.pipeline.jobs.table_analysis import Analysis, analyse
    from tidings.pipeline.sinks.stream_sinks import ConsoleSink, KafkaSink, ParquetSink, StoreSink
    from tidings.pipeline.sources.feed_items import FeedEvents, feed_items
    from tidings.pipeline.sources.stream_sources import FileEvents, KafkaEvents, LogEvents
    from tidings.pipeline.steps.match_step import match
    from tidings.pipeline.streams.index_changes import IndexChanges
    from tidings.pipeline.streams.stream_query import Stream, stream

# Each other name is imported when it is first asked for: Spark starts several Pythons for a stream, most of which only
# read the log or write notifications, and need not wait for the matcher's kernels.
_NAMES = {
    "build.compiled_index": ("Index", "compile"),
    "build.event_schema": ("domain_of",),
    "jobs.backtesting": ("Backtest", "backtest", "filter_of"),
    "jobs.table_analysis": ("Analysis", "analyse"),
    "sinks.stream_sinks": ("ConsoleSink", "KafkaSink", "ParquetSink", "StoreSink"),
    "sources.feed_items": ("FeedEvents", "feed_items"),
    "sources.stream_sources": ("FileEvents", "KafkaEvents", "LogEvents"),
    "steps.match_step": ("match",),
    "streams.index_changes": ("IndexChanges",),
    "streams.stream_query": ("Stream", "stream"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "Analysis",
    "Backtest",
    "ConsoleSink",
    "FeedEvents",
    "FileEvents",
    "Index",
    "IndexChanges",
    "KafkaEvents",
    "KafkaSink",
    "LogEvents",
    "ParquetSink",
    "PipelineError",
    "StoreSink",
    "Stream",
    "analyse",
    "backtest",
    "compile",
    "domain_of",
    "feed_items",
    "filter_of",
    "match",
    "session",
    "stream",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'tidings.pipeline' has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
