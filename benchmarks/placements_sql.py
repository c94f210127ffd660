"""The best that one would write in SQL for any workload: subscriptions as a table, matched by joins.

Filters that differ in their constants alone would each be a join, but workloads have up to a thousand such classes,
and Spark plans each join for longer than it runs. So all subscriptions are one table with a nullable column for each
bound, and are joined with the events on one key:

    keyed          the rarest equality of a subscription, or else bins of its narrowest range; what has neither, or
                   only wide ranges, by a nested loop
    nested loop    every event with every subscription, which for boxes is the best

What the key does not say is verified by one condition over all columns, which Spark compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.prepared import Class, Conjunct, prepare
from tidings.systems.geometry.line_positions import ranges
from tidings.testing.workloads import Workload

BINS = 20  # that a line is cut into
WIDE = 0.1  # of a line, past which a range is not worth its bins

_OTHER = ("either", "differs", "among", "prefix", "contains", "null", "exceeds")  # at most one of a filter


class Formulations:
    """Of one workload: its subscriptions as tables, cached, and the joins by name."""

    def __init__(self, spark: SparkSession, workload: Workload) -> None:
        prepared = prepare(workload)
        self._texts, self._numbers = prepared.texts, prepared.numbers
        self._range = max(1.0, *(pc.max(workload.events[name]).as_py() or 1.0 for name in self._numbers))
        self._common = {name: _shares(workload.events[name]) for name in self._texts}
        parts = [self._rows(class_) for class_ in prepared.classes]
        table = pa.concat_tables(parts, promote_options="permissive")
        self._all = spark.createDataFrame(table).repartition(8).cache()
        self._keyed = self._all.where("key_attribute IS NOT NULL").cache()
        self._unkeyed = self._all.where("key_attribute IS NULL").cache()
        self._once = self._all.dropDuplicates(["subscription"]).cache()
        self._unkeyed_count, self._keyed_count = self._unkeyed.count(), self._keyed.count()
        self._once.count()
        self._sparse = {name: table[name].null_count > 0 for name in table.column_names}

    def close(self) -> None:
        for frame in (self._all, self._keyed, self._unkeyed, self._once):
            frame.unpersist()

    @property
    def ways(self) -> dict[str, Callable[[DataFrame], DataFrame]]:
        """From events to pairs; only those that differ."""
        return {"SQL nested loop": self.nested_loop} | ({"SQL keyed": self.keyed} if self._keyed_count else {})

    def nested_loop(self, events: DataFrame) -> DataFrame:
        return self._joined(events, self._once, F.lit(True))

    def keyed(self, events: DataFrame) -> DataFrame:
        text_keys = [
            F.struct(F.lit(i).alias("attribute"), F.col(name).alias("value")) for i, name in enumerate(self._texts)
        ]
        number_keys = [
            F.struct(F.lit(100 + i).alias("attribute"), self._bin(F.col(name)).cast("string").alias("value"))
            for i, name in enumerate(self._numbers)
        ]
        exploded = events.withColumn("_key", F.explode(F.array(*text_keys, *number_keys)))
        same = (F.col("_key.attribute") == F.col("key_attribute")) & (F.col("_key.value") == F.col("key_value"))
        found = self._joined(exploded, self._keyed, same)
        return found.union(self._joined(events, self._unkeyed, F.lit(True))) if self._unkeyed_count else found

    def _bin(self, value: Column) -> Column:
        return F.floor(value / self._range * BINS)

    def _joined(self, events: DataFrame, subscriptions: DataFrame, key: Column) -> DataFrame:
        joined = events.join(F.broadcast(subscriptions), key & self._holds())
        return joined.select(*self._texts, *self._numbers, "subscription")

    def _holds(self) -> Column:
        """That an event satisfies all of a subscription's columns."""
        condition = F.lit(True)
        for name in self._texts:
            condition &= self._where_asked(f"{name}_is", lambda asked, name=name: asked == F.col(name))
        for name in self._numbers:
            condition &= self._where_asked(f"{name}_low", lambda asked, name=name: F.col(name) >= asked)
            condition &= self._where_asked(f"{name}_high", lambda asked, name=name: F.col(name) < asked)
        return condition & self._other_holds() if "other" in self._sparse else condition

    def _where_asked(self, name: str, holds: Callable[[Column], Column]) -> Column:
        if name not in self._sparse:
            return F.lit(True)
        return F.col(name).isNull() | holds(F.col(name)) if self._sparse[name] else holds(F.col(name))

    def _other_holds(self) -> Column:
        text = F.element_at(F.array(*map(F.col, self._texts)), F.col("one"))
        second = F.element_at(F.array(*map(F.col, self._texts)), F.col("two"))
        number = F.element_at(F.array(*map(F.col, self._numbers)), F.col("one"))
        factor = F.element_at(F.array(*map(F.col, self._numbers)), F.col("two"))
        return (
            F.when(F.col("other").isNull(), True)
            .when(F.col("other") == "either", (text == F.col("p")) | (second == F.col("q")))
            .when(F.col("other") == "differs", text != F.col("p"))
            .when(F.col("other") == "among", text.isin(F.col("p"), F.col("q"), F.col("r")))
            .when(F.col("other") == "prefix", F.startswith(text, F.col("p")))
            .when(F.col("other") == "contains", F.contains(text, F.col("p")))
            .when(F.col("other") == "null", text.isNull())
            .otherwise(number > factor * F.col("p").cast("double"))
        )

    # ------------------------------------------------------------------ subscriptions as rows

    def _rows(self, class_: Class) -> pa.Table:
        count = len(class_.subscriptions)
        columns: dict[str, Any] = {"subscription": pa.array(class_.subscriptions)}
        for conjunct in class_.conjuncts:
            name, values = conjunct.names[0], [class_.constants[i] for i in conjunct.constants]
            if conjunct.kind == "equal":
                columns[f"{name}_is"] = pa.array(values[0])
            elif conjunct.kind in ("at_least", "below"):
                columns[f"{name}_{'low' if conjunct.kind == 'at_least' else 'high'}"] = pa.array(values[0])
            else:
                columns |= self._other(conjunct, values, count)
        return self._with_keys(pa.table(columns), class_)

    def _other(self, conjunct: Conjunct, values: list[Any], count: int) -> dict[str, Any]:
        assert conjunct.kind in _OTHER
        listed = self._numbers if conjunct.kind == "exceeds" else self._texts
        numbers = [listed.index(name) + 1 for name in conjunct.names]
        columns: dict[str, Any] = {"other": pa.array([conjunct.kind] * count)}
        columns |= {
            place: pa.array(np.full(count, n, np.int32)) for place, n in zip(("one", "two"), numbers, strict=False)
        }
        texts = [pa.array([str(value) for value in one]) for one in values]
        return columns | dict(zip("pqr", texts, strict=False))

    def _with_keys(self, table: pa.Table, class_: Class) -> pa.Table:
        """With the attribute and value that a subscription is found by; copied for each bin of a range."""
        equal = [conjunct.names[0] for conjunct in class_.of_kind("equal")]
        if equal:
            shares = np.stack([_share_of(self._common[name], table[f"{name}_is"]) for name in equal])
            best = np.argmin(shares, axis=0)
            attributes = np.array([self._texts.index(name) for name in equal], np.int32)[best]
            values = pc.choose(pa.array(best), *(table[f"{name}_is"].combine_chunks() for name in equal))
            return table.append_column("key_attribute", pa.array(attributes)).append_column("key_value", values)
        narrow = [
            name
            for name in self._numbers
            if f"{name}_low" in table.column_names
            and float(pc.mean(pc.subtract(table[f"{name}_high"], table[f"{name}_low"])).as_py()) < WIDE * self._range
        ]
        if not narrow:
            return table.append_column("key_attribute", pa.nulls(len(table), pa.int32())).append_column(
                "key_value", pa.nulls(len(table), pa.string())
            )
        name = narrow[0]
        first = np.floor(np.asarray(table[f"{name}_low"]) / self._range * BINS).astype(np.int64)
        last = np.floor(np.asarray(table[f"{name}_high"]) / self._range * BINS).astype(np.int64)
        row, bins = ranges(first, last - first + 1)
        copied = table.take(pa.array(row))
        attribute = np.full(len(row), 100 + self._numbers.index(name), np.int32)
        return copied.append_column("key_attribute", pa.array(attribute)).append_column(
            "key_value", pa.array(bins).cast(pa.string())
        )


def _shares(column: Any) -> tuple[Any, Any]:
    counts = pc.value_counts(column)
    return counts.field("values"), np.asarray(counts.field("counts")) / max(1, len(column))


def _share_of(known: tuple[Any, Any], values: Any) -> Any:
    """The share of the events that have each value; 0 for one that none has."""
    at = pc.index_in(values, value_set=known[0]).combine_chunks()
    return np.append(known[1], 0.0)[np.asarray(at.fill_null(len(known[1])))]
