"""Subscriptions as JSON: read strictly, field by field with the place of what is wrong, and written."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidings.errors import did_you_mean
from tidings.model.event_values import NEEDS_OFFSET, Misfit, fit, kind_of, written
from tidings.model.types import TIMESTAMP
from tidings.service.gateway.problems import Problem, invalid, pointer_to, shown
from tidings.service.gateway.webhook_sending import SECRET_PREFIX, check_webhook_url
from tidings.store.catalogue import SubscriptionRow
from tidings.store.catalogue.rows import SELECTIONS

MAX_FILTER = 100_000  # characters
MAX_LABELS, MAX_LABEL = 64, 255
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:@+=-]{0,254}")
_MODES = ("pull", "sse", "webhook")
_CREATED = ("id", "domain", "filter", "select", "delivery", "start", "expires", "labels", "paused")
_PATCHED = ("filter", "select", "delivery", "expires", "labels", "paused")

Start: TypeAlias = "str | int | dt.datetime"  # "latest", "earliest", a position, a time


@dataclass(frozen=True)
class Delivery:
    """How notifications get to a subscriber."""

    mode: str
    url: str | None = None
    secret: str | None = None
    made: bool = False  # the secret is ours, and has to be told once


@dataclass(frozen=True)
class Form:
    """What a subscriber asks for."""

    id: str | None
    domain: str
    filter: str
    delivery: Delivery
    start: Start
    expires: int | None
    labels: dict[str, str]
    paused: bool
    select: str = "document"


@dataclass(frozen=True)
class Patch:
    """What a subscriber wants to be otherwise; None: it stays."""

    filter: str | None = None
    delivery: Delivery | None = None
    expires: int | None = None
    forget_expires: bool = False
    labels: dict[str, str] | None = None
    paused: bool | None = None
    select: str | None = None


def read_form(body: Mapping[str, Any], *, id: str | None = None, dev_webhooks: bool) -> Form:
    """A whole subscription; with `id` that of the address, which the body may repeat."""
    refuse_unknown(body, _CREATED)
    given = body.get("id", id)
    if given is not None and (not isinstance(given, str) or not _ID.fullmatch(given)):
        raise invalid("an id is 1 to 255 of A-Z, a-z, 0-9 and ._~:@+=-, the first a letter or a digit", "/id")
    if id is not None and given != id:
        raise invalid(f"the id in the address is {shown(id)}; leave it out here, or give the same", "/id")
    domain = body.get("domain")
    if not isinstance(domain, str):
        raise invalid("a subscription needs the name of its domain", "/domain")
    delivery = body.get("delivery")
    return Form(
        given,
        domain,
        read_filter(body.get("filter")),
        Delivery("pull") if delivery is None else _delivery(delivery, dev_webhooks=dev_webhooks),
        _start(body.get("start", "latest")),
        None if body.get("expires") is None else _expires(body["expires"]),
        _labels({} if body.get("labels") is None else body["labels"], {}),
        _boolean(body.get("paused", False), "/paused"),
        _selection(body.get("select")),
    )


def read_patch(body: Mapping[str, Any], row: SubscriptionRow, *, dev_webhooks: bool) -> Patch:
    """A JSON merge patch (RFC 7396) of a subscription."""
    refuse_unknown(body, _PATCHED)
    if "filter" in body and body["filter"] is None:
        raise invalid("a subscription needs a filter; write TRUE to have every event", "/filter")
    delivery = None
    if "delivery" in body:
        patch = body["delivery"]
        if patch is None:
            delivery = Delivery("pull")
        elif not isinstance(patch, dict):
            raise invalid(f"a delivery is an object with a mode, not {kind_of(patch)}", "/delivery")
        else:
            before: dict[str, Any] = {"mode": row.delivery}
            if patch.get("mode", row.delivery) == "webhook" == row.delivery:
                before |= {"url": row.url, "secret": row.secret}
            merged = {name: value for name, value in {**before, **patch}.items() if value is not None}
            delivery = _delivery(merged, dev_webhooks=dev_webhooks)
    expires = body.get("expires")
    return Patch(
        read_filter(body["filter"]) if "filter" in body else None,
        delivery,
        None if expires is None else _expires(expires),
        "expires" in body and expires is None,
        _labels({} if body["labels"] is None else body["labels"], row.labels, replace=body["labels"] is None)
        if "labels" in body
        else None,
        None if body.get("paused") is None else _boolean(body["paused"], "/paused"),
        _selection(body["select"]) if "select" in body else None,
    )


def patch_of(form: Form) -> Patch:
    """The whole of a subscription in place of what it was."""
    return Patch(form.filter, form.delivery, form.expires, form.expires is None, form.labels, form.paused, form.select)


def written_subscription(row: SubscriptionRow, *, secret: str | None = None) -> dict[str, Any]:
    """A subscription as the interface shows it. A secret is shown once, where it was made here."""
    delivery: dict[str, Any] = {"mode": row.delivery}
    if row.url is not None:
        delivery["url"] = row.url
    if secret is not None:
        delivery["secret"] = secret
    if row.old_secret_until is not None and row.old_secret_until > time.time_ns() // 1000:
        delivery["old_secret_until"] = written_time(row.old_secret_until)
    first = row.filters[0] if row.filters else None
    start = "latest" if first is None or first.replay_from is None else {"position": first.replay_from}
    form = {
        "id": row.id,
        "domain": row.domain,
        "filter": row.filter,
        "select": row.select,
        "delivery": delivery,
        "start": start,
        "expires": None if row.expires is None else written_time(row.expires),
        "labels": row.labels,
        "paused": row.paused,
        "state": row.state,
        "filter_from": row.filter_from,
        "created": written_time(row.created),
        "updated": written_time(row.updated),
    }
    if row.disabled is not None:
        form["disabled"] = row.disabled
    if row.failed is not None:
        form["failed"] = row.failed
    if row.suspended is not None:
        form["suspended"] = row.suspended
    return form


def written_time(microseconds: int) -> str:
    return str(written(microseconds, TIMESTAMP))


def read_time(value: object, pointer: str) -> int:
    """An instant in microseconds; a time that could be several is refused."""
    if not isinstance(value, str):
        raise invalid(f"a time is text, such as 2026-05-01T12:00:00Z, not {kind_of(value)}", pointer)
    try:
        read: int = fit(value, TIMESTAMP)
    except Misfit as misfit:
        status = 400 if NEEDS_OFFSET in str(misfit) else 422
        raise Problem(status, "invalid", str(misfit), pointer=pointer) from None
    return read


def read_datetime(value: object, pointer: str) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=read_time(value, pointer))


def read_position(value: object, pointer: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid("a position is an integer from 0", pointer)
    return value


def read_filter(value: object, pointer: str = "/filter") -> str:
    if not isinstance(value, str) or not value.strip():
        raise invalid("a filter is text, such as price < 100; write TRUE to have every event", pointer)
    if len(value) > MAX_FILTER or "\0" in value:
        raise invalid(f"a filter has at most {MAX_FILTER} characters, none of them NUL", pointer)
    return value


def refuse_unknown(body: Mapping[str, Any], known: tuple[str, ...], *place: str) -> None:
    for name in body:
        if name not in known:
            detail = f"{shown(name)} is no field here; {did_you_mean(name, known)}"
            raise invalid(detail, pointer_to(*place, name))


def _delivery(value: object, *, dev_webhooks: bool) -> Delivery:
    if not isinstance(value, dict):
        raise invalid(f"a delivery is an object with a mode, not {kind_of(value)}", "/delivery")
    refuse_unknown(value, ("mode", "url", "secret"), "delivery")
    mode = value.get("mode", "webhook" if "url" in value else "pull")
    if mode not in _MODES:
        raise invalid(f"a mode is one of {', '.join(_MODES)}, not {shown(mode)}", "/delivery/mode")
    if mode != "webhook":
        for name in ("url", "secret"):
            if value.get(name) is not None:
                raise invalid(f"only webhooks have a {name}; leave it out", f"/delivery/{name}")
        return Delivery(mode)
    url = check_webhook_url(value.get("url"), dev_webhooks=dev_webhooks)
    secret = value.get("secret")
    if secret is None:
        return Delivery(mode, url, SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode(), made=True)
    return Delivery(mode, url, _secret(secret))


def _secret(value: object) -> str:
    """A secret as Standard Webhooks writes it."""
    if isinstance(value, str) and value.startswith(SECRET_PREFIX):
        try:
            if 24 <= len(base64.b64decode(value.removeprefix(SECRET_PREFIX), validate=True)) <= 64:
                return value
        except (binascii.Error, ValueError):
            pass
    raise invalid(f"a secret is {SECRET_PREFIX} and 24 to 64 bytes in base64; leave it out to have one made",
                  "/delivery/secret")  # fmt: skip


def _selection(value: object) -> str:
    if value is None:
        return SELECTIONS[0]
    if not isinstance(value, str) or value not in SELECTIONS:
        raise invalid(f"what is delivered is one of {', '.join(SELECTIONS)}, not {shown(value)}", "/select")
    return value


def _start(value: object) -> Start:
    match value:
        case "latest" | "earliest":
            return str(value)
        case {"position": position, **rest} if not rest:
            return read_position(position, "/start/position")
        case {"time": moment, **rest} if not rest:
            return read_datetime(moment, "/start/time")
    raise invalid('a start is "latest", "earliest", {"position": …} or {"time": "…Z"}', "/start")


def _expires(value: object) -> int:
    expires = read_time(value, "/expires")
    if expires <= time.time_ns() // 1000:
        raise invalid(f"{shown(value)} is past; leave it out for a subscription that does not expire", "/expires")
    return expires


def _labels(value: object, before: Mapping[str, str], *, replace: bool = False) -> dict[str, str]:
    if not isinstance(value, dict):
        raise invalid(f"labels are an object of texts, not {kind_of(value)}", "/labels")
    labels = {} if replace else dict(before)
    for name, text in value.items():
        place = pointer_to("labels", name)
        if not name or len(name) > MAX_LABEL or "=" in name or "\0" in name:
            raise invalid(f"a label's name has 1 to {MAX_LABEL} characters, none of them = or NUL", place)
        if text is None:
            labels.pop(name, None)
        elif not isinstance(text, str) or len(text) > MAX_LABEL or "\0" in text:
            raise invalid(f"a label is text of at most {MAX_LABEL} characters, none of them NUL", place)
        else:
            labels[name] = text
    if len(labels) > MAX_LABELS:
        raise invalid(f"a subscription has at most {MAX_LABELS} labels", "/labels")
    return labels


def _boolean(value: object, pointer: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"true or false is wanted, not {kind_of(value)}", pointer)
    return value
