"""A domain: the attributes that events of one kind have, and what is known of them.

    stocks = Domain("stocks", [
        Attribute("exchange", "string", allowed=["NYSE", "NASDAQ"]),
        Attribute("price", "decimal(10,2)", min=0, max="20.00", precision="0.01", unit="EUR"),
        Attribute("venue", "struct<country:string,city:string>"),
    ], indices=[("exchange", "venue.city")])

Names are Spark's multipart identifiers: `venue.city` is the field `city` of the struct `venue`, and
an attribute whose own name has a dot is written in back-quotes. A struct stands for its leaves.

A file, in TOML or JSON, has one domain or several:

    [[domains]]                       {"domains": [{"name": "stocks",
    name = "stocks"                      "attributes": [{"name": "price", "type": "double", "min": 0.0}],
    indices = [["exchange"]]             "indices": [["exchange"]]}]}

    [[domains.attributes]]
    name = "price"
    type = "double"
    min = 0.0

A file of one domain has the same keys at its top. Decimals, dates and times are written as texts; TOML's
own dates and times are read too.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, Literal

import tomli_w

from tidings.errors import DomainError, did_you_mean
from tidings.model.event_values import FieldValue, Misfit, fit, shown, written
from tidings.model.types import BIGINT, DataType, Path, parse_type, quote_name, struct

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


__all__ = ["Attribute", "Domain", "dump_domains", "load_domains", "parse_path", "path_text"]

_ATTRIBUTE_KEYS = ("name", "type", "min", "max", "precision", "unit", "allowed")
_DOMAIN_KEYS = ("name", "attributes", "indices")


@dataclass(frozen=True)
class Domain:
    """A name, attributes in order, and indices: ordered subsets of attributes that filters often fix together."""

    name: str
    attributes: tuple[Attribute, ...]
    indices: tuple[tuple[str, ...], ...] = ()

    def __init__(self, name: str, attributes: Iterable[Attribute], indices: Iterable[Iterable[str]] = ()) -> None:
        if not isinstance(name, str) or not name or has_surrogate(name):
            raise DomainError(f"domain: a domain's name is a text that is not empty, not {shown(name)}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "attributes", tuple(attributes))
        for attribute in self.attributes:
            if not isinstance(attribute, Attribute):
                raise DomainError(f"domain '{name}': {shown(attribute)} is no Attribute; write Attribute(name, type)")
        self.leaves  # noqa: B018 - refuses attributes that clash
        object.__setattr__(self, "indices", tuple(self._index(index) for index in indices))
        if len(set(self.indices)) < len(self.indices):
            raise DomainError(f"domain '{name}': an index is there twice; remove one")

    def _index(self, index: Iterable[str]) -> tuple[str, ...]:
        names = [index] if isinstance(index, str) else list(index)
        paths = [parse_path(name) if isinstance(name, str) else () for name in names]
        for name, path in zip(names, paths, strict=True):
            place = f"domain '{self.name}': index ({', '.join(map(str, names))})"
            if path not in self.leaves:
                raise DomainError(f"{place}: unknown attribute '{name}'; {did_you_mean(str(name), self.names)}")
            if not self.leaves[path].is_scalar:
                raise DomainError(f"{place}: '{name}' is {self.leaves[path]}; an index is over scalar attributes")
            if paths.count(path) > 1:
                raise DomainError(f"{place}: '{name}' is there twice; remove one")
        if not paths:
            raise DomainError(f"domain '{self.name}': an index is empty; name its attributes, or leave it out")
        return tuple(map(path_text, paths))

    @cached_property
    def leaves(self) -> dict[Path, DataType]:
        """Every attribute by its path, structs expanded, in the order of declaration."""
        leaves: dict[Path, DataType] = {}
        for attribute in self.attributes:
            for path, type_ in _expand(attribute.path, attribute.type):
                if path in leaves:
                    raise DomainError(f"domain '{self.name}': attribute '{path_text(path)}' is there twice; remove one")
                leaves[path] = type_
        for path in leaves:
            for cut in range(1, len(path)):
                if path[:cut] in leaves:
                    raise DomainError(
                        f"domain '{self.name}': attribute '{path_text(path[:cut])}' is {leaves[path[:cut]]}, so there "
                        f"is no '{path_text(path)}' in it; rename one, or write a dot in a name inside back-quotes"
                    )
        return leaves

    @cached_property
    def has_cloud_events(self) -> bool:
        """Whether an event with a `specversion` is a CloudEvent: it is, unless records have an attribute so named."""
        return all(path[0] != "specversion" for path in self.leaves)

    @cached_property
    def _structs(self) -> dict[Path, DataType]:
        """The type of every path that leads to leaves but is none."""
        inner: dict[Path, dict[Path, None]] = {}
        for path in self.leaves:
            for cut in range(1, len(path)):
                inner.setdefault(path[:cut], {})[path[: cut + 1]] = None
        types: dict[Path, DataType] = {}
        for path in sorted(inner, key=len, reverse=True):
            types[path] = struct(*((child[-1], self.leaves.get(child) or types[child]) for child in inner[path]))
        return types

    @cached_property
    def _by_lower_case(self) -> dict[Path, list[Path]]:
        by_lower_case: dict[Path, list[Path]] = {}
        for path in (*self.leaves, *self._structs):
            by_lower_case.setdefault(_lower(path), []).append(path)
        return by_lower_case

    def find(self, parts: tuple[str, ...]) -> tuple[Path, DataType] | None:
        """The attribute that a filter means by these parts, or None.

        Exact names come first; else, as Spark resolves names, case is disregarded where exactly
        one attribute fits. Parts that lead to a struct give its path and struct type.
        """
        if parts not in self.leaves and parts not in self._structs:
            fitting = self._by_lower_case.get(_lower(parts), [])
            if not fitting:
                return None
            if len(fitting) > 1:
                names = " or ".join(f"'{path_text(path)}'" for path in fitting)
                raise DomainError(f"domain '{self.name}': '{path_text(parts)}' is ambiguous; write {names}")
            parts = fitting[0]
        return parts, self.leaves.get(parts) or self._structs[parts]

    @property
    def names(self) -> list[str]:
        """The leaves' names, dotted, back-quoted where a filter must write them so."""
        return [path_text(path) for path in self.leaves]

    def attribute(self, path: Path) -> Attribute | None:
        """The attribute declared at exactly this path; None for a field of a declared struct."""
        return self._declared.get(path)

    @cached_property
    def _declared(self) -> dict[Path, Attribute]:
        return {attribute.path: attribute for attribute in self.attributes}

    def to_dict(self) -> dict[str, Any]:
        form: dict[str, Any] = {"name": self.name, "attributes": [attribute.to_dict() for attribute in self.attributes]}
        if self.indices:
            form["indices"] = [list(index) for index in self.indices]
        return form

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @staticmethod
    def from_json(source: str | Mapping[str, Any]) -> Domain:
        """A domain from JSON text, or from the object it stands for."""
        return _domain_from_dict(_read_json(source) if isinstance(source, str) else source)

    @staticmethod
    def from_toml(text: str) -> Domain:
        return _domain_from_dict(_read_toml(text))

    def __str__(self) -> str:
        heads = ["name", "type", "min", "max", "precision", "unit", "allowed"]
        rows = [[str(cell) for cell in _cells(attribute)] for attribute in self.attributes]
        used = [i for i in range(len(heads)) if i < 2 or any(row[i] for row in rows)]
        table = [[line[i] for i in used] for line in [heads, *rows]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
        indices = [f"  index ({', '.join(index)})" for index in self.indices]
        return "\n".join([f"domain {self.name}", *lines, *indices])


def _cells(attribute: Attribute) -> Iterator[object]:
    form = attribute.to_dict()
    yield attribute.name
    yield attribute.type
    for field in ("min", "max", "precision", "unit"):
        yield form.get(field, "")
    yield ", ".join(map(str, form.get("allowed", [])))


def _expand(path: Path, type_: DataType) -> Iterator[tuple[Path, DataType]]:
    if type_.name != "struct":
        yield path, type_
        return
    for name, field in type_.fields:
        yield from _expand((*path, name), field)


def _lower(path: Path) -> Path:
    return tuple(part.lower() for part in path)


def load_domains(source: str | FilePath) -> dict[str, Domain]:
    """The domains of a TOML or JSON file, or of its text, by name.

    A text of one line that does not look like JSON is the path of a file.
    """
    if isinstance(source, FilePath) or not ("\n" in source or source.lstrip().startswith(("{", "["))):
        path = FilePath(source)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DomainError(f"domain: cannot read the file {path}: {error}") from error
        try:
            return _domains_of_text(text)
        except DomainError as error:
            raise DomainError(f"{path}: {error}") from None
    return _domains_of_text(source)


def dump_domains(domains: Iterable[Domain], *, form: Literal["toml", "json"] = "toml") -> str:
    """The text of one file with all these domains; `load_domains` reads it back."""
    listed = {"domains": [domain.to_dict() for domain in domains]}
    return tomli_w.dumps(listed) if form == "toml" else json.dumps(listed, indent=2, ensure_ascii=False)


def _domains_of_text(text: str) -> dict[str, Domain]:
    read = _read_json(text) if re.match(r"\s*(\{|\[\s*[{\]])", text) else _read_toml(text)
    if isinstance(read, Mapping) and "domains" in read:
        _refuse_unknown(read, ("domains",), "a file of several domains")
        read = read["domains"]
    elif isinstance(read, Mapping):
        read = [read]
    if not isinstance(read, list):
        raise DomainError(f"domain: domains are listed, not {shown(read)}; write [[domains]] in TOML")
    domains: dict[str, Domain] = {}
    for form in read:
        domain = _domain_from_dict(form)
        if domain.name in domains:
            raise DomainError(f"domain '{domain.name}' is there twice; rename or remove one")
        domains[domain.name] = domain
    return domains


def _read_json(text: str) -> Any:
    """JSON, with its numbers exact."""
    try:
        return json.loads(text, parse_float=Decimal, object_pairs_hook=_object)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DomainError(f"domain: this is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DomainError(f"domain: the key {shown(twice)} is there twice in one object; remove one")
    return read


def _read_toml(text: str) -> dict[str, Any]:
    """TOML, with its numbers exact."""
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DomainError(f"domain: this is not TOML: {error}") from None


def _domain_from_dict(form: object) -> Domain:
    """A domain from the form that its `to_dict` gives, checked key by key."""
    if not isinstance(form, Mapping):
        raise DomainError(f"domain: a domain is an object with name and attributes, not {shown(form)}")
    name = form.get("name")
    if not isinstance(name, str) or not name:
        raise DomainError('domain: a domain has no name; add name = "…"')
    place = f"domain '{name}'"
    _refuse_unknown(form, _DOMAIN_KEYS, place)
    attributes, indices = form.get("attributes", []), form.get("indices", [])
    if not isinstance(attributes, list):
        raise DomainError(f"{place}: attributes are a list of objects with name and type, not {shown(attributes)}")
    if not isinstance(indices, list) or not all(isinstance(index, list) for index in indices):
        raise DomainError(f"{place}: indices are lists of attribute names, not {shown(indices)}")
    return Domain(name, [_attribute(item, i, place) for i, item in enumerate(attributes)], indices)


def _attribute(form: object, position: int, place: str) -> Attribute:
    if not isinstance(form, Mapping):
        raise DomainError(f"{place}: attribute {position} is an object with name and type, not {shown(form)}")
    for key in ("name", "type"):
        if key not in form:
            known = f"attribute '{form['name']}'" if "name" in form else f"attribute {position}"
            raise DomainError(f'{place}: {known} has no {key}; add {key} = "…"')
    _refuse_unknown(form, _ATTRIBUTE_KEYS, f"{place}: attribute '{form['name']}'")
    try:
        return Attribute(**form)
    except DomainError as error:
        raise DomainError(f"{place}: {error}") from None


def _refuse_unknown(form: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for key in form:
        if key not in known:
            raise DomainError(f"{place} has an unknown key '{key}'; {did_you_mean(str(key), known)}")
