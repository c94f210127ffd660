"""In which topic a log keeps its pages, written down in its directory, so that every reader finds them."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from tidings.store.log.log_errors import LogError
from tidings.store.log.topic_pages import Topic

PLACE = "topic.json"


def written_place(directory: Path) -> str | None:
    """The URL of a log's topic; None of a log that keeps its pages itself."""
    path = directory / PLACE
    try:
        return str(json.loads(path.read_text())["url"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LogError(f"log: cannot read {path}: {error}; start its writer again, which writes it") from error


def write_place(directory: Path, url: str) -> None:
    """Say where the pages are. Its owner alone can read it: a URL may have a password."""
    before = written_place(directory)
    if before is not None and urlsplit(before).path != urlsplit(url).path:
        raise LogError(
            f"log: {directory} belongs to the topic {urlsplit(before).path[1:]}, not to {urlsplit(url).path[1:]}; give "
            "that one, or another directory"
        )
    beside = directory / f".{PLACE}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"url": url}, file)
    beside.replace(directory / PLACE)


def topic_at(url: str) -> Topic:
    """The topic that a URL names, not connected to yet."""
    if urlsplit(url).scheme != "kafka":
        raise LogError("log: a log is in a directory, or at kafka://host:port/topic")
    try:
        from tidings.store.log.kafka_topic import KafkaTopic
    except ImportError:
        raise LogError("log: Kafka needs a package of its own: pip install 'tidings[kafka]'") from None
    return KafkaTopic(url)


@cache
def shared_topic(url: str) -> Topic:
    """One connection for all tasks of a process, which keeps it as long as it lives."""
    return topic_at(url)
