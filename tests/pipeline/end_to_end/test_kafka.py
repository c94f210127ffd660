"""Events come from a real Kafka, and their matches go to it: each event once, with what the oracle says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from tests.waiting import LAST_RESORT_SECONDS

from tidings.model.domain import Attribute, Domain
from tidings.pipeline import PipelineError
from tidings.testing import brute_force

pytestmark = [pytest.mark.spark, pytest.mark.long]

HERE = Path(__file__).parent
SCHEMA = {"n": "bigint", "symbol": "string", "price": "double"}


def beside(name: str) -> ModuleType:
    """A module in this folder: tests are no package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kafka() -> Iterator[dict[str, Any]]:
    """The address of a broker, and the settings of a session that reaches it."""
    broker = beside("kafka_broker")
    try:
        config, ready = broker.connector(), broker.Broker()
    except (broker.Unavailable, PipelineError) as missing:
        warnings.warn(f"Kafka is not tested: {missing}", stacklevel=1)
        pytest.skip(str(missing))
    with ready:
        yield {"address": ready.address, "config": config}


@pytest.mark.parametrize("way", ["match", "stream"])
def test_every_event_of_a_topic_arrives_once_with_its_matches_in_another(
    kafka: dict[str, Any], way: str, tmp_path: Path
) -> None:
    random = Random(4)
    prices = [None, *range(100)]
    events = [{"n": n, "symbol": random.choice(["OIL", "GAS"]), "price": random.choice(prices)} for n in range(400)]
    subscriptions = {i: f"price > {i}" if i % 2 else f"symbol = 'OIL' AND price < {i}" for i in range(60)}
    given = {
        **kafka,
        "way": way,
        "events": f"{way}-events",
        "matches": f"{way}-matches",
        "folder": str(tmp_path),
        "schema": SCHEMA,
        "subscriptions": list(subscriptions.items()),
        "parts": [events[:300], events[300:]],
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "kafka_round_trip.py"), json.dumps(given)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LAST_RESORT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    expected: dict[int, list[int]] = {event["n"]: [] for event in events}
    domain = Domain("events", [Attribute(name, type_) for name, type_ in SCHEMA.items()])
    for event, id_ in brute_force(subscriptions, events, domain):
        expected[event].append(id_)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(events)
    assert {row["n"]: sorted(row["subscriptions"]) for row in found} == expected
