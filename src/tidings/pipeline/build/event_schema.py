"""What a Spark schema says of events: their domain, and whether an index was compiled for such."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidings.errors import DomainError, did_you_mean
from tidings.model.domain import Attribute, Domain, path_text
from tidings.model.infer import infer_domain
from tidings.model.types import INTEGER_BITS, DataType, Path
from tidings.pipeline.job_errors import PipelineError


def domain_of(given: Any, name: str = "events") -> Domain:
    """A domain as given, or from a DataFrame or its schema, an Arrow schema, or a dict of types by name.

    Columns of types that no filter can speak of are left out: events carry them along.
    """
    if isinstance(given, Domain):
        return given
    if isinstance(given, dict):
        return Domain(name, [Attribute(key, type_) for key, type_ in given.items()])
    schema = given.schema if isinstance(given, DataFrame) else given
    if not isinstance(schema, StructType):
        return infer_domain(schema, name)
    attributes: list[Attribute] = []
    for field in schema.fields:
        try:
            attributes += infer_domain(StructType([field]), name).attributes
        except DomainError:
            continue
    return Domain(name, attributes)


def check_events(schema: StructType, domain: Domain, read: Iterable[Path]) -> None:
    """Refuse events that lack an attribute that the filters read, or have it in another type."""
    leaves = domain_of(schema).leaves
    for path in read:
        wanted, found = domain.leaves[path], leaves.get(path)
        if found is None:
            hint = did_you_mean(path_text(path), map(path_text, leaves))
            raise PipelineError(
                f"the events have no column '{path_text(path)}', which filters of the index read; {hint}"
            )
        if not _fits(found, wanted):
            raise PipelineError(
                f"the column '{path_text(path)}' is {found} in the events and {wanted} in the index; cast it, "
                "or compile the subscriptions for these events"
            )


def _fits(found: DataType, wanted: DataType) -> bool:
    """Whether every value of one type is one of the other, exactly."""
    if found == wanted:
        return True
    if found.is_integral and wanted.is_integral:
        return INTEGER_BITS[found.name] <= INTEGER_BITS[wanted.name]
    return (found.name, wanted.name) == ("float", "double")
