"""One attribute of a domain, and the names of attributes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidings.errors import DomainError
from tidings.model.event_values import FieldValue, Misfit, fit, shown, written
from tidings.model.types import BIGINT, DataType, Path, parse_type, quote_name

RESERVED_PREFIX = "_tidings_"  # of columns that go through Spark beside the attributes
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")


def parse_path(name: str) -> Path:
    """The parts of a written name: split at dots outside back-quotes; a doubled back-quote is one."""
    parts: list[str] = []
    at = 0
    while part := _PART.match(name, at):
        parts.append(part[1].replace("``", "`") if part[1] else part[2])
        at = part.end()
        if at == len(name) and not has_surrogate(name):
            return tuple(parts)
        if not name.startswith(".", at):
            break
        at += 1
    raise DomainError(
        f"domain: {shown(name)} is no attribute's name; write name or struct.field, with back-quotes around a part "
        "that has a dot or a back-quote (doubled) of its own"
    )


def is_reserved(name: str) -> bool:
    """Whether a column of this name could be taken for one of Tidings' own: Spark disregards case."""
    return "".join(map(_folded, name[: len(RESERVED_PREFIX)])) == RESERVED_PREFIX


def _folded(character: str) -> str:
    """As Java disregards case, character by character: ı and İ are i, ſ is s."""
    upper = character.upper()
    return (upper if len(upper) == 1 else character).lower()[0]


def path_text(path: Path) -> str:
    """A path as filters and domain files write it: `parse_path` reads it back."""
    return ".".join(map(quote_name, path))


def has_surrogate(text: str) -> bool:
    """Whether the text has half a character, which no file can hold."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True)
class Attribute:
    """One attribute as it is declared.

    min, max, precision (the step between neighbouring values) and allowed tell placements how to
    spread keys well. They do not restrict events: a value outside them is legal and is matched
    like any other. They are given in Python's, JSON's or TOML's form, checked against the type,
    and kept in the one Python form of `tidings.model.types`; dates and timestamps may also be
    given in that form, as days and microseconds. The precision of a date is in days, of a timestamp in
    microseconds.
    """

    name: str
    type: DataType
    min: FieldValue = None
    max: FieldValue = None
    precision: FieldValue = None
    unit: str | None = None
    allowed: tuple[FieldValue, ...] = ()

    def __init__(
        self, name: str, type: DataType | str, min: object = None, max: object = None, precision: object = None,
        unit: str | None = None, allowed: Iterable[object] = (),
    ) -> None:  # fmt: skip
        if not isinstance(name, str):
            raise DomainError(f"domain: an attribute's name is a text, not {shown(name)}")
        path = parse_path(name)
        if is_reserved(path[0]):
            raise DomainError(
                f"attribute '{path_text(path)}': names that begin with {RESERVED_PREFIX} are Tidings' own; rename it"
            )
        known = self._known(path_text(path), type)
        if isinstance(allowed, str | bytes | Mapping) or not isinstance(allowed, Iterable):
            raise DomainError(f"attribute '{name}': allowed is a list of values, not {shown(allowed)}")
        values = {
            "name": path_text(path),
            "type": known,
            "min": self._limit("min", min, path, known),
            "max": self._limit("max", max, path, known),
            "precision": self._step(precision, path, known),
            "unit": unit,
            "allowed": tuple(self._limit("allowed", value, path, known) for value in allowed),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)
        self._check()

    @staticmethod
    def _known(name: str, type_: DataType | str) -> DataType:
        if isinstance(type_, DataType):
            return type_
        if not isinstance(type_, str):
            raise DomainError(f"attribute '{name}': a type is a text such as 'double', not {shown(type_)}")
        try:
            return parse_type(type_)
        except DomainError as error:
            raise DomainError(f"attribute '{name}': {error}") from None

    @staticmethod
    def _limit(what: str, value: object, path: Path, type_: DataType) -> FieldValue:
        if value is None and what != "allowed":
            return None
        place = f"attribute '{path_text(path)}': {what}"
        if not type_.is_scalar:
            raise DomainError(f"{place} is for scalar types, and this is {type_}; leave it out")
        if type_.is_datetime and isinstance(value, int) and not isinstance(value, bool):
            try:
                value = written(value, type_)  # in the kept form already; its range is checked here
            except (OverflowError, ValueError):
                raise DomainError(f"{place} {shown(value)} is outside the years 0001 to 9999") from None
        try:
            kept = fit(value, type_)
        except Misfit as misfit:
            raise DomainError(f"{place}: {misfit}") from None
        if kept is None or kept != kept or kept in (float("inf"), float("-inf")):
            raise DomainError(f"{place} {shown(value)} is no bound; leave it out")
        return kept

    @staticmethod
    def _step(value: object, path: Path, type_: DataType) -> FieldValue:
        if value is None:
            return None
        place = f"attribute '{path_text(path)}': precision"
        if not (type_.is_numeric or type_.is_datetime):
            raise DomainError(f"{place} is for numbers and times, and this is {type_}; leave it out")
        try:
            step = fit(value, BIGINT if type_.is_datetime else type_)
        except Misfit as misfit:
            raise DomainError(f"{place}: {misfit}") from None
        if not 0 < step < float("inf"):
            raise DomainError(f"{place} {shown(value)} is no step between values; give a number above 0")
        return step

    def _check(self) -> None:
        if self.unit is not None and (not isinstance(self.unit, str) or has_surrogate(self.unit)):
            raise DomainError(f"attribute '{self.name}': the unit is a text, not {shown(self.unit)}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise DomainError(f"attribute '{self.name}': min {self._text('min')} is above max {self._text('max')}")
        for value in self.allowed:
            if (self.min is not None and value < self.min) or (self.max is not None and value > self.max):
                raise DomainError(
                    f"attribute '{self.name}': the allowed {written(value, self.type)} is outside min and max"
                )

    def _text(self, field: str) -> str:
        value = getattr(self, field)
        return str(written(value, BIGINT if field == "precision" and self.type.is_datetime else self.type))

    @cached_property
    def path(self) -> Path:
        return parse_path(self.name)

    def to_dict(self) -> dict[str, Any]:
        """The form of JSON and TOML, without what is not declared."""
        form: dict[str, Any] = {"name": self.name, "type": str(self.type)}
        for field in ("min", "max"):
            if getattr(self, field) is not None:
                form[field] = written(getattr(self, field), self.type)
        if self.precision is not None:
            form["precision"] = self.precision if self.type.is_datetime else written(self.precision, self.type)
        if self.unit is not None:
            form["unit"] = self.unit
        if self.allowed:
            form["allowed"] = [written(value, self.type) for value in self.allowed]
        return form
