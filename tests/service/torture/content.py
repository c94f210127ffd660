"""What is published and asked for: shapes of domains, their events in every form, filters with their meaning.

All of it is plain data, drawn from a `Random`: a schedule names a shape, and the same draws come from the same seed.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from tidings.errors import EventError
from tidings.model.event import read_record
from tidings.model.event_json import texts_of
from tidings.model.strict_json import read_one
from tidings.testing.random_cases import Case, make_case
from tidings.xml.feed import split_feed

from ..faults.workload import ATTRIBUTES, compact, draw_event, draw_predicate
from ..history.judge import Predicate, sql

ODD_NAMES = (
    "position", "time", "subscriptions_version", "_tidings_position", "_tidings_x", "_tidings_", "domain", "event",
    "id", "source", "data", "value", "offset", "timestamp", "partition", "key", "subscriptions", "batch", "__index",
    "_metadata", "_c0", "document", "type",
)  # fmt: skip
FORMS = ("batch", "structured", "binary", "json", "array", "ndjson", "gzip")
FUZZ_EVENTS, FUZZ_FILTERS, FUZZ_SIZE = 60, 60, 8

Filter = dict[str, Any]  # {"text": …, "predicate": […]}


@dataclass(frozen=True)
class Post:
    """A request that publishes, and the events that it has: their records as they are written down."""

    kind: str
    body: bytes
    records: list[dict[str, Any]]
    headers: dict[str, str]
    repeatable: bool  # its events have ids


# ---------------------------------------------------------------------- domains


def attributes_of(shape: str) -> list[dict[str, str]]:
    """The attributes of a domain of a shape; a shape is its name and, after a colon, what it is about."""
    kind, _, rest = shape.partition(":")
    match kind:
        case "stock":
            return [*ATTRIBUTES]
        case "venue":
            return [*ATTRIBUTES, {"name": "venue", "type": "string"}]
        case "retyped":
            return [*(one for one in ATTRIBUTES if one["name"] != "size"), {"name": "size", "type": "string"}]
        case "text":
            return [{"name": "s", "type": "string"}, {"name": "n", "type": "bigint"}]
        case "odd":
            return [{"name": f"`{rest}`", "type": "bigint"}, {"name": "symbol", "type": "string"}]
        case "xml":
            return [{"name": "document", "type": "string"}]
        case "fuzz":
            found: list[dict[str, str]] = fuzz_case(int(rest)).domain.to_dict()["attributes"]
            return found
    raise ValueError(f"unknown shape {shape}")


@lru_cache(maxsize=64)
def fuzz_case(seed: int) -> Case:
    """A domain of the fuzzers, with those of its events that JSON can say, and filters."""
    case = make_case(random.Random(seed), events=FUZZ_EVENTS, filters=FUZZ_FILTERS, size=FUZZ_SIZE)
    return Case(case.domain, [event for event in case.events if _is_json(event, case)], case.filters)


def _is_json(event: dict[str, Any], case: Case) -> bool:
    try:
        read_record(read_one(texts_of([event])[0]).value, case.domain)
    except (EventError, ValueError):
        return False
    return True


# ---------------------------------------------------------------------- events


def draw_records(draw: random.Random, shape: str, count: int, size: int) -> list[dict[str, Any]]:
    """Records that fit a shape, each with about so many bytes more than it needs."""
    made = [_record(draw, *shape.partition(":")[::2]) for _ in range(count)]
    if size > WITHOUT_PAD and not shape.startswith("xml"):
        made = [{**one, "pad": _pad(draw.choice("abcé😀"), size)} for one in made]
    return made


WITHOUT_PAD = 200


def _pad(character: str, size: int) -> str:
    return character * (size // len(character.encode()))


def _record(draw: random.Random, kind: str, rest: str) -> dict[str, Any]:
    match kind:
        case "stock":
            return draw_event(draw)
        case "venue":
            return {**draw_event(draw), "venue": draw.choice(["X", "Y", None])}
        case "empty":
            return {}
        case "text":
            return {"s": draw.choice(TEXTS), "n": draw.randint(0, 9)}
        case "odd":
            return {rest: draw.randint(0, 9), "symbol": draw.choice(["OIL", "GAS"])}
        case "fuzz":
            text = texts_of([draw.choice(fuzz_case(int(rest)).events)])[0]
            return {**json.loads(text, parse_float=Decimal), "exact": text}  # as it is written, for the judge
    raise ValueError(f"no records of shape {kind}")


TEXTS = ("", "a", "ba" * 20, "%", "_", "İ", "i̇", "Iı", "abc", "x" * 300, "a" * 4000, "....a", "\u0000", "😀a", "'")


def posts(draw: random.Random, shape: str, form: str, count: int, size: int, source: str, first: int) -> list[Post]:
    """Requests that publish so many events, in one of the forms that the service takes."""
    if shape.startswith("xml"):
        return [_feed(draw, count, size, source, first) if form == "feed" else _xml(draw, size, source, first)]
    records = draw_records(draw, shape, count, size)
    at_once = max(1, min(len(records), (6 << 20) // max(1, size)))
    found: list[Post] = []
    step = 1 if form in ("structured", "binary", "json") else at_once
    for start in range(0, len(records), step):
        found.append(_post(form, records[start : start + step], source, first + start))
    return found


def _post(form: str, records: list[dict[str, Any]], source: str, first: int) -> Post:
    names = [str(first + row) for row in range(len(records))]
    kept = [_written(record) for record in records]
    clouds = [
        {"specversion": "1.0", "type": "torture", "source": source, "id": name, "data": record}
        for name, record in zip(names, records, strict=True)
    ]
    marked = [{**record, "k": f"{source}|{name}"} for name, record in zip(names, records, strict=True)]
    unnamed = [_written(record) for record in marked]
    match form:
        case "structured":
            return Post("application/cloudevents+json", _json(clouds[0]), kept, {}, True)
        case "binary":
            headers = {"ce-specversion": "1.0", "ce-type": "torture", "ce-source": source, "ce-id": names[0]}
            return Post("application/json", _json(records[0]), kept, headers, True)
        case "json":
            return Post("application/json", _json(marked[0]), unnamed, {}, False)
        case "array":
            return Post("application/json", _json(marked), unnamed, {}, False)
        case "ndjson":
            return Post("application/x-ndjson", b"\n".join(map(_json, marked)), unnamed, {}, False)
        case "gzip":
            body = gzip.compress(_json(clouds), 1)
            return Post("application/cloudevents-batch+json", body, kept, {"content-encoding": "gzip"}, True)
    return Post("application/cloudevents-batch+json", _json(clouds), kept, {}, True)


def _json(value: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    """With decimals as exact as they are."""
    if isinstance(value, list):
        return f"[{','.join(texts_of(value))}]".encode()
    return texts_of([value])[0].encode()


def _written(record: dict[str, Any]) -> dict[str, Any]:
    """A record as those who get it read it."""
    return compact(json.loads(_json(record)))


def _xml(draw: random.Random, size: int, source: str, first: int) -> Post:
    document = (
        f'<item k="{source}|{first}"><author>{draw.choice(AUTHORS)}</author><price>{draw.randint(0, 40)}</price>'
        f"<pad>{'x' * size}</pad></item>"
    )
    headers = {"ce-specversion": "1.0", "ce-type": "torture", "ce-source": source, "ce-id": str(first)}
    return Post("application/xml", document.encode(), [{"document": document}], headers, True)


def _feed(draw: random.Random, count: int, size: int, source: str, first: int) -> Post:
    items = "".join(
        f'<item k="{source}|{first + row}"><guid>{source}{first + row}</guid><author>{draw.choice(AUTHORS)}</author>'
        f"<price>{draw.randint(0, 40)}</price><pad>{'y' * size}</pad></item>"
        for row in range(count)
    )
    feed = f"<rss><channel><link>http://example.org{source}</link><title>t</title>{items}</channel></rss>"
    documents = [{"document": item.document} for item in split_feed(feed)]
    return Post("application/rss+xml", feed.encode(), documents, {}, True)


AUTHORS = ("Liu", "T. Johnson", "Ana")


# ---------------------------------------------------------------------- filters


def draw_filter(draw: random.Random, shape: str) -> Filter:
    """A filter that fits a shape, and what it means."""
    kind, _, rest = shape.partition(":")
    match kind:
        case "stock" | "venue":
            return _said(draw_predicate(draw))
        case "text":
            return _said(draw.choice([["true"], [">", "n", draw.randint(0, 9)], ["like", "s", "%a%"]]))
        case "odd":
            constant = draw.randint(0, 5)
            return {"text": f"`{rest}` >= {constant}", "predicate": [">=", rest, constant]}
        case "xml":
            path = draw.choice(["//item[author = \\'Liu\\']", "//item[price < 20]", "//item", "//none"])
            return interpreted(f"xpath_boolean(document, '{path}')", shape)
        case "fuzz":
            case = fuzz_case(int(rest))
            _, text = draw.choice(case.readable() or [(0, "TRUE")])
            return interpreted(text, shape)
    raise ValueError(f"no filters of shape {shape}")


def _said(predicate: Predicate) -> Filter:
    return {"text": sql(predicate), "predicate": predicate}


def interpreted(text: str, shape: str) -> Filter:
    """A filter whose meaning is the plain interpreter's."""
    return {"text": text, "predicate": ["interpreted", text, shape]}


def limit_filters() -> list[Filter]:
    """Filters over the shape `text` that are near what is taken, or past it: refused at once, or right for ever."""
    deep = 190
    return [
        _said(["like", "s", "%a" * 4500]),
        _said(["like", "s", "%" + "." * 9000 + "%a"]),
        _said(["like", "s", "_%" * 3000 + "a"]),
        _said(["like", "s", "%" * 9000]),
        _said(["like", "s", "a" * 9000]),
        {"text": f"s ILIKE '{'İ' * 5000}'", "predicate": ["not", ["true"]]},
        {"text": f"s ILIKE '%{'İ' * 2000}%a'", "predicate": ["not", ["true"]]},
        {"text": f"s RLIKE '{'(a|b)' * 1500}'", "predicate": ["=", "s", "a" * 4000]},  # the one text so long
        {"text": "s RLIKE '(a{0,500}){0,2}b{500}'", "predicate": ["not", ["true"]]},
        {"text": "s RLIKE '" + "a?" * 3000 + "'", "predicate": ["not", ["null", "s"]]},
        {"text": "NOT (" * (deep // 2 - 1) + "n = 1" + ")" * (deep // 2 - 1), "predicate": ["=", "n", 1]},
        {"text": "(" * deep + "n = 1" + ")" * deep, "predicate": ["=", "n", 1]},
        _said(["in", "n", list(range(4000))]),
        _said(["or", *(["=", "n", number] for number in range(900))]),
        {"text": " AND ".join(f"(n = {one} OR n < {one + 5})" for one in range(20)), "predicate": [
            "and", *(["or", ["=", "n", one], ["<", "n", one + 5]] for one in range(20))]},
        {"text": " AND ".join(f"(n > {one} OR s = 'v{one}' OR n <> 3)" for one in range(60)), "predicate": [
            "and", *(["or", [">", "n", one], ["=", "s", f"v{one}"], ["!=", "n", 3]] for one in range(60))]},
        {"text": "length(s) * n + " + " + ".join(["n"] * 150) + " >= 0", "predicate": ["and", [">=", "n", 0],
                                                                               ["not", ["null", "s"]]]},
        {"text": "n / 0 = 1 OR n % 0 = 1", "predicate": ["not", ["true"]]},
        {"text": "upper(lower(upper(s))) = upper(s)", "predicate": ["interpreted", "upper(lower(upper(s))) = upper(s)",
                                                                   "text"]},
        _said(["true"]),
    ]  # fmt: skip
