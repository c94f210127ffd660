"""Match on Spark: one call, batch or stream, one machine or a cluster.

session      a Spark session that is ready, Java included
compile      a table of subscriptions → an index, versioned and kept in files
match        events → events with the subscriptions that they satisfy
stream       the same as events come and subscriptions change, into a sink, each match once
backtest     what a draft filter would have delivered over stored events
analyse      which subscriptions are in vain, where they pile up, who costs what, how to place them

    index = pipeline.compile(subscriptions, "index/")
    matched = events.transform(pipeline.match, subscriptions=index)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tidings.pipeline.job_errors import PipelineError
from tidings.pipeline.runtime.spark_session import (
    session,  # a module has the same name: here, so that the function keeps it
)

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
_PLACES = {
    "Analysis": "tidings.pipeline.jobs.table_analysis",
    "analyse": "tidings.pipeline.jobs.table_analysis",
    "IndexChanges": "tidings.pipeline.streams.index_changes",
    "FeedEvents": "tidings.pipeline.sources.feed_items",
    "feed_items": "tidings.pipeline.sources.feed_items",
    "Backtest": "tidings.pipeline.jobs.backtesting",
    "backtest": "tidings.pipeline.jobs.backtesting",
    "filter_of": "tidings.pipeline.jobs.backtesting",
    "Index": "tidings.pipeline.build.compiled_index",
    "compile": "tidings.pipeline.build.compiled_index",
    "match": "tidings.pipeline.steps.match_step",
    "domain_of": "tidings.pipeline.build.event_schema",
    "ConsoleSink": "tidings.pipeline.sinks.stream_sinks",
    "KafkaSink": "tidings.pipeline.sinks.stream_sinks",
    "ParquetSink": "tidings.pipeline.sinks.stream_sinks",
    "StoreSink": "tidings.pipeline.sinks.stream_sinks",
    "FileEvents": "tidings.pipeline.sources.stream_sources",
    "KafkaEvents": "tidings.pipeline.sources.stream_sources",
    "LogEvents": "tidings.pipeline.sources.stream_sources",
    "Stream": "tidings.pipeline.streams.stream_query",
    "stream": "tidings.pipeline.streams.stream_query",
}

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
    if name not in _PLACES:
        raise AttributeError(f"module 'tidings.pipeline' has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
