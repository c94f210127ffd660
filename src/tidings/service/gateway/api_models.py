"""Bodies of the control plane as Pydantic models: read strictly, refused with a JSON pointer, described in OpenAPI.

    body ─► strict JSON ─► read_body(SubscriptionBody, object) ─► SubscriptionBody, or Problem(422, pointer="/filter")

No value is converted and no unknown field is taken. `Said` gives a field the text that a refused value is answered
with, in place of Pydantic's own. Published events are no models: `event_formats` reads them, which is faster.
"""

from __future__ import annotations

import base64
import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tidings.errors import did_you_mean
from tidings.model.event_values import NEEDS_OFFSET, Misfit, fit, kind_of, written
from tidings.model.types import TIMESTAMP
from tidings.service.gateway.problems import Problem, invalid, pointer_to, shown
from tidings.service.gateway.webhook_sending import SECRET_PREFIX
from tidings.store.catalogue import SubscriptionChanges, SubscriptionRow
from tidings.systems.interface import AUTO

MAX_FILTER = 100_000  # characters
MAX_LABELS, MAX_LABEL = 64, 255
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_REFUSED = "refused"  # the type of our own errors

_Model = TypeVar("_Model", bound="Body")


# -- reading and refusing ----------------------------------------------------------------------------


def read_body(model: type[_Model], value: Mapping[str, Any], *place: str) -> _Model:
    """Returns a body as its model; raises Problem with the place of the first value that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        context = first.get("ctx", {})
        where = [*place, *(part for part in first["loc"] if part != "[key]"), *context.get("at", ())]
        if first["type"] == "missing":
            said = next(one for one in model.model_fields[str(where[-1])].metadata if isinstance(one, Said))
            raise invalid(said.about("nothing"), pointer_to(*where)) from None
        raise Problem(context.get("status", 422), "invalid", first["msg"], pointer=pointer_to(*where)) from None


def _refused(text: str, *at: str, status: int = 422) -> PydanticCustomError:
    """An error with a text of ours; `at` is where, below the value that is being read."""
    return PydanticCustomError(_REFUSED, "{text}", {"text": text, "status": status, "at": at})


@dataclass(frozen=True)
class Said:
    """The text for a value that is refused; `{kind}` and `{value}` in it are replaced."""

    text: str

    def about(self, kind: str, value: str = "") -> str:
        return self.text.replace("{kind}", kind).replace("{value}", value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def _read(self, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["loc"] or first["type"] == _REFUSED:  # it is about a part of the value, or has its text
                raise
            raise _refused(self.about(kind_of(value), shown(value))) from None


class Body(BaseModel):
    """A body: nothing is converted, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        takes_null = cls.model_config.get("extra") == "ignore"
        for name in value if isinstance(value, dict) else ():
            if name not in known and not (takes_null and value[name] is None):
                raise _refused(f"{shown(name)} is no field here; {did_you_mean(name, known)}", name)
        return value


# -- times, positions, filters -----------------------------------------------------------------------


def written_time(microseconds: int) -> str:
    return str(written(microseconds, TIMESTAMP))


def _microseconds(value: object) -> int:
    """An instant; a time without an offset could be several instants and is refused."""
    if not isinstance(value, str):
        raise _refused(f"a time is text, such as 2026-05-01T12:00:00Z, not {kind_of(value)}")
    try:
        read: int = fit(value, TIMESTAMP)
    except Misfit as misfit:
        raise _refused(str(misfit), status=400 if NEEDS_OFFSET in str(misfit) else 422) from None
    return read


def _time(value: object) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=_microseconds(value))


def _expires(value: object) -> int:
    expires = _microseconds(value)
    if expires <= time.time_ns() // 1000:
        raise _refused(f"{shown(value)} is past; leave it out for a subscription that does not expire")
    return expires


def _filter(text: str) -> str:
    if len(text) > MAX_FILTER or "\0" in text:
        raise _refused(f"a filter has at most {MAX_FILTER} characters, none of them NUL")
    if not text.strip():
        raise ValueError
    return text


_TimeText: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Time: TypeAlias = Annotated[dt.datetime, PlainValidator(_time, json_schema_input_type=_TimeText)]
Position: TypeAlias = Annotated[int, Field(ge=0), Said("a position is an integer from 0")]
_position = TypeAdapter[int](Annotated[Position, Field(strict=True)])
FilterText: TypeAlias = Annotated[
    str,
    AfterValidator(_filter),
    Said("a filter is text, such as price < 100; write TRUE to have every event"),
    Field(examples=["price < 100 AND exchange = 'NYSE'"]),
]


def _place(value: object) -> int | dt.datetime:
    return _time(value) if isinstance(value, str) else _position.validate_python(value)


Place: TypeAlias = Annotated[
    int | dt.datetime, PlainValidator(_place, json_schema_input_type=Annotated[int, Field(ge=0)] | _TimeText)
]


# -- domains -----------------------------------------------------------------------------------------


class AttributeBody(BaseModel):
    """Describes an attribute in OpenAPI; `Domain.from_json` reads it, and says what is wrong."""

    model_config = ConfigDict(extra="forbid")

    name: str
    type: str = Field(examples=["double", "string", "timestamp"])
    min: Any = None
    max: Any = None
    precision: Any = None
    unit: str = ""
    allowed: list[Any] = []


def _some(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise ValueError
    return value


class DomainBody(Body):
    name: Annotated[str, Said("the name is in the address; leave it out here, or give the same")] = ""
    attributes: Annotated[
        list[AttributeBody],
        SkipValidation(),
        AfterValidator(_some),
        Said("attributes are a list of objects with name and type, not {kind}"),
    ]
    indices: Annotated[list[list[str]], SkipValidation()] = []
    placement: Annotated[
        str,
        Said("a placement is a name, or auto for what the service chooses"),
        Field(description="Where its events meet its subscriptions; by default what the service chooses"),
    ] = AUTO

    def definition(self, name: str) -> dict[str, Any]:
        """What `Domain.from_json` reads."""
        return {field: getattr(self, field) for field in self.model_fields_set - {"placement"}} | {"name": name}


# -- subscriptions -----------------------------------------------------------------------------------

Mode: TypeAlias = Annotated[Literal["pull", "sse", "webhook"], Said("a mode is one of pull, sse, webhook, not {value}")]
Selection: TypeAlias = Annotated[
    Literal["document", "nodes"], Said("what is delivered is one of document, nodes, not {value}")
]
Url: TypeAlias = Annotated[
    str,
    Said("a webhook needs a url, such as https://example.com/hook"),
    Field(json_schema_extra={"format": "uri"}),
]


def _secret(text: str) -> str:
    """A secret as Standard Webhooks writes it."""
    key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    if not text.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError
    return text


Secret: TypeAlias = Annotated[
    str,
    AfterValidator(_secret),
    Said(f"a secret is {SECRET_PREFIX} and 24 to 64 bytes in base64; leave it out to have one made"),
    Field(json_schema_extra={"writeOnly": True}),
]


class Delivery(Body):
    """How notifications get to a subscriber; a webhook without a secret is given one."""

    url: Url | None = None
    secret: Secret | None = None
    mode: Mode = Field(default_factory=lambda given: "pull" if given.get("url") is None else "webhook")

    @model_validator(mode="after")
    def _expect_webhook(self) -> Delivery:
        for name in ("url", "secret"):
            if self.mode != "webhook" and getattr(self, name) is not None:
                raise _refused(f"only webhooks have a {name}; leave it out", name)
        return self


class DeliveryPatch(Body):
    """What changes of a delivery. A null removes what is there, and does nothing where nothing is (RFC 7396)."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": {"type": "null"}})

    url: Url | None = None
    secret: Secret | None = None
    mode: Mode | None = None

    def merged(self, row: SubscriptionRow) -> Delivery:
        """The delivery of a subscription with these changes."""
        patch = {name: getattr(self, name) for name in self.model_fields_set}
        before: dict[str, Any] = {"mode": row.delivery}
        if patch.get("mode", row.delivery) == "webhook" == row.delivery:
            before |= {"url": row.url, "secret": row.secret}
        merged = {name: value for name, value in {**before, **patch}.items() if value is not None}
        return read_body(Delivery, merged, "delivery")


class StartAtPosition(Body):
    position: Position


class StartAtTime(Body):
    time: Time


_StartName: TypeAlias = Literal["latest", "earliest"]


def _start(value: object) -> _StartName | StartAtPosition | StartAtTime:
    match value:
        case "latest" | "earliest" as name:
            return name
        case {"position": _, **rest} if not rest:
            return StartAtPosition.model_validate(value)
        case {"time": _, **rest} if not rest:
            return StartAtTime.model_validate(value)
    raise _refused('a start is "latest", "earliest", {"position": …} or {"time": "…Z"}')


Start: TypeAlias = Annotated[
    _StartName | StartAtPosition | StartAtTime,
    PlainValidator(_start, json_schema_input_type=_StartName | StartAtPosition | StartAtTime),
]
Expires: TypeAlias = Annotated[int, PlainValidator(_expires, json_schema_input_type=_TimeText)]
_LabelName: TypeAlias = Annotated[
    str,
    Field(pattern=rf"^[^=\x00]{{1,{MAX_LABEL}}}$"),
    Said(f"a label's name has 1 to {MAX_LABEL} characters, none of them = or NUL"),
]
_LabelText: TypeAlias = Annotated[
    str,
    Field(pattern=rf"^[^\x00]{{0,{MAX_LABEL}}}$"),
    Said(f"a label is text of at most {MAX_LABEL} characters, none of them NUL"),
]
Labels: TypeAlias = Annotated[
    dict[_LabelName, _LabelText | None], Said("labels are an object of texts, not {kind}")
]  # a null removes a label


def _merged_labels(labels: Mapping[str, str | None] | None, before: Mapping[str, str]) -> dict[str, str]:
    merged = {name: text for name, text in {**before, **(labels or {})}.items() if text is not None}
    if len(merged) > MAX_LABELS:
        raise invalid(f"a subscription has at most {MAX_LABELS} labels", "/labels")
    return merged


class SubscriptionBody(Body):
    """A whole subscription, to be created or to replace what is there."""

    id: (
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~:@+=-]{0,254}$"),
            Said("an id is 1 to 255 of A-Z, a-z, 0-9 and ._~:@+=-, the first a letter or a digit"),
        ]
        | None
    ) = None
    domain: Annotated[str, Said("a subscription needs the name of its domain")]
    filter: FilterText
    delivery: Annotated[Delivery, Said("a delivery is an object with a mode, not {kind}")] | None = None
    start: Start = "latest"
    expires: Expires | None = None
    labels: Labels | None = None
    paused: Annotated[bool, Said("true or false is wanted, not {kind}")] = False
    select: Selection | None = Field(
        None, description="What is delivered: the event, or the nodes that the filter's XML paths select in it"
    )

    def delivery_for(self, row: SubscriptionRow | None = None) -> Delivery:
        return self.delivery or Delivery()

    def changes(self, row: SubscriptionRow | None = None) -> SubscriptionChanges:
        """What the catalogue keeps, apart from filter and delivery."""
        labels = _merged_labels(self.labels, {})
        return {"expires": self.expires, "labels": labels, "paused": self.paused, "select": self.select or "document"}


class SubscriptionPatch(Body):
    """A JSON merge patch (RFC 7396) of a subscription."""

    filter: FilterText = Field(default_factory=str)  # empty: it stays
    delivery: Annotated[DeliveryPatch, Said("a delivery is an object with a mode, not {kind}")] | None = None
    expires: Expires | None = None
    labels: Labels | None = None
    paused: Annotated[bool, Said("true or false is wanted, not {kind}")] | None = None
    select: Selection | None = None

    def delivery_for(self, row: SubscriptionRow) -> Delivery | None:
        """The subscription's delivery with the changes; None if it stays."""
        if "delivery" not in self.model_fields_set:
            return None
        return Delivery() if self.delivery is None else self.delivery.merged(row)

    def changes(self, row: SubscriptionRow) -> SubscriptionChanges:
        """What the catalogue keeps otherwise from now on, apart from filter and delivery."""
        changes: SubscriptionChanges = {}
        if "expires" in self.model_fields_set:
            changes["expires"] = self.expires
        if "labels" in self.model_fields_set:
            changes["labels"] = {} if self.labels is None else _merged_labels(self.labels, row.labels)
        if self.paused is not None:
            changes["paused"] = self.paused
        if "select" in self.model_fields_set:
            changes["select"] = self.select or "document"
        return changes


# -- the rest ----------------------------------------------------------------------------------------


class AckBody(Body):
    cursor: Annotated[str, Said("a cursor is a text that came with notifications")]


class RedriveBody(Body):
    positions: Annotated[list[Position], Said("positions are a list of integers; leave them out for all")] | None = None


class FilterTestBody(Body):
    domain: Annotated[str, Said("a domain is named by text")] | None = None
    filter: FilterText
    event: Annotated[dict[str, Any], Said("an event is an object, and this is {kind}")]


class BacktestBody(Body):
    domain: Annotated[str, Said("a backtest needs the name of its domain")]
    filter: FilterText
    first: Place | None = Field(None, alias="from")
    end: Place | None = Field(None, alias="to")
    compare: Annotated[str, Said("compare is the id of a subscription")] | None = None
