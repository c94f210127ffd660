"""Match on Spark: one call, batch or stream, one machine or a cluster.

session      a Spark session that is ready, Java included
compile      a table of subscriptions → an index, versioned and kept in files
match        events → events with the subscriptions that they satisfy
stream       the same as events come and subscriptions change, into a sink, each match once
backtest     what a draft filter would have delivered over stored events

    index = pipeline.compile(subscriptions, "index/")
    matched = events.transform(pipeline.match, subscriptions=index)
"""

from tidings.pipeline.changes import IndexChanges
from tidings.pipeline.errors import PipelineError
from tidings.pipeline.history import Backtest, backtest, filter_of
from tidings.pipeline.index import Index, compile
from tidings.pipeline.matching import match
from tidings.pipeline.schema import domain_of
from tidings.pipeline.session import session
from tidings.pipeline.sinks import ConsoleSink, KafkaSink, ParquetSink, StoreSink
from tidings.pipeline.sources import FileEvents, KafkaEvents, LogEvents
from tidings.pipeline.streaming import Stream, stream

__all__ = [
    "Backtest",
    "ConsoleSink",
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
    "backtest",
    "compile",
    "domain_of",
    "filter_of",
    "match",
    "session",
    "stream",
]
