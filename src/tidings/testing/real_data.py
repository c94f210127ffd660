"""Real events, from the folder that the environment variable TIDINGS_DATA names.

    stocks        stocks_us_daily_dev.csv.gz          daily quotes of US stocks
    aircraft      adsb_switzerland_139k.json.gz       positions of aircraft over Switzerland
    earthquakes   usgs_earthquakes_week_1707.json.gz  a week of earthquakes, in GeoJSON
    bibliography  acl_papers_dev.xmllines.gz          bibliographic records, an XML document each
    feeds         rss_atom_real_feeds.tar.gz          RSS and Atom feeds as they are found, some not well-formed

Nothing depends on them: where they are not, `DataMissing` says what to do.
"""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.csv

VARIABLE = "TIDINGS_DATA"


class DataMissing(Exception):
    """The real data is missing; the message says where it is looked for."""


def data_file(name: str) -> Path:
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise DataMissing(f"{VARIABLE} is not set: set it to the folder that has {name}")
    path = Path(folder) / name
    if not path.is_file():
        raise DataMissing(f"{VARIABLE} is {folder}, and there is no {name}")
    return path


def stocks() -> Any:
    """A table of quotes: symbol, date, open, high, low, close, volume, adj_close."""
    return pyarrow.csv.read_csv(data_file("stocks_us_daily_dev.csv.gz"))


def aircraft() -> list[dict[str, Any]]:
    """Positions: timestamp (in milliseconds), icao24, callsign, where, how fast and in which direction."""
    positions: list[dict[str, Any]] = _read_json("adsb_switzerland_139k.json.gz")
    return positions


def earthquakes() -> list[dict[str, Any]]:
    """GeoJSON features: nested properties, and coordinates in an array."""
    features: list[dict[str, Any]] = _read_json("usgs_earthquakes_week_1707.json.gz")["features"]
    return features


def bibliography() -> list[bytes]:
    """XML documents: a paper with its authors, title, year and so on."""
    with gzip.open(data_file("acl_papers_dev.xmllines.gz")) as file:
        return file.read().splitlines()


def feeds() -> dict[str, bytes]:
    """Feeds by the names of their files."""
    with tarfile.open(data_file("rss_atom_real_feeds.tar.gz")) as archive:
        members = (member for member in archive if member.isfile())
        return {member.name: file.read() for member in members if (file := archive.extractfile(member))}


def _read_json(name: str) -> Any:
    with gzip.open(data_file(name)) as file:
        return json.load(file)
