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

from tidings.pipeline.errors import PipelineError
from tidings.pipeline.session import session  # a module has the same name: here, so that the function keeps it

if TYPE_CHECKING:
    from tidings.pipeline.analysis import Analysis, analyse
    from tidings.pipeline.changes import IndexChanges
    from tidings.pipeline.feeds import FeedEvents, feed_items
    from tidings.pipeline.history import Backtest, backtest, filter_of
    from tidings.pipeline.index import Index, compile
    from tidings.pipeline.matching import match
    from tidings.pipeline.schema import domain_of
    from tidings.pipeline.sinks import ConsoleSink, KafkaSink, ParquetSink, StoreSink
    from tidings.pipeline.sources import FileEvents, KafkaEvents, LogEvents
    from tidings.pipeline.streaming import Stream, stream

# Each other name is imported when it is first asked for: Spark starts several Pythons for a stream, most of which only
# read the log or write notifications, and need not wait for the matcher's kernels.
_PLACES = {
    "Analysis": "tidings.pipeline.analysis",
    "analyse": "tidings.pipeline.analysis",
    "IndexChanges": "tidings.pipeline.changes",
    "FeedEvents": "tidings.pipeline.feeds",
    "feed_items": "tidings.pipeline.feeds",
    "Backtest": "tidings.pipeline.history",
    "backtest": "tidings.pipeline.history",
    "filter_of": "tidings.pipeline.history",
    "Index": "tidings.pipeline.index",
    "compile": "tidings.pipeline.index",
    "match": "tidings.pipeline.matching",
    "domain_of": "tidings.pipeline.schema",
    "ConsoleSink": "tidings.pipeline.sinks",
    "KafkaSink": "tidings.pipeline.sinks",
    "ParquetSink": "tidings.pipeline.sinks",
    "StoreSink": "tidings.pipeline.sinks",
    "FileEvents": "tidings.pipeline.sources",
    "KafkaEvents": "tidings.pipeline.sources",
    "LogEvents": "tidings.pipeline.sources",
    "Stream": "tidings.pipeline.streaming",
    "stream": "tidings.pipeline.streaming",
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
