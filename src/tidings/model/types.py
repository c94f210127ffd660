"""The types of attributes and expressions, named as Spark SQL names them.

`parse_type("decimal(10,2)")` reads what Spark writes and `str(type)` writes it back. Values of
each type have one Python form everywhere in Tidings:

    boolean                          bool
    tinyint, smallint, int, bigint   int
    float                            float, already rounded to 32 bits
    double                           float
    decimal(p,s)                     decimal.Decimal with exactly s digits after the point
    string                           str, without lone surrogates
    date                             int, days since 1970-01-01
    timestamp, timestamp_ntz         int, microseconds since 1970-01-01 00:00 (UTC)
    array<scalar>                    list of the above, None for NULL
    binary                           bytes
    map                              list of (key, value)
    struct, inside an array or map   dict of the above by field name
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from tidings.errors import DomainError, did_you_mean

Path: TypeAlias = tuple[str, ...]  # of an attribute: ("address", "city") is address.city

MAX_PRECISION = 38  # of a decimal, as in Spark

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SCALARS = ("boolean", *INTEGER_BITS, "float", "double", "string", "date", "timestamp", "timestamp_ntz")
_SYNONYMS = {
    "bool": "boolean", "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint",
    "real": "float", "dec": "decimal", "numeric": "decimal", "timestamp_ltz": "timestamp",
}  # fmt: skip
_PUNCTUATION = "<>(),:"
_TOKEN = re.compile(r"`(?:[^`]|``)*`|[<>(),:]|[^\s<>(),:`]+|`")
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """One Spark SQL type. Compare with `==`; take the scalar ones from this module's constants."""

    name: str
    precision: int = 0  # of a decimal
    scale: int = 0
    element: DataType | None = None  # of an array
    fields: tuple[tuple[str, DataType], ...] = ()  # of a struct; key and value of a map

    # By hand, since filters compare types all the time: mostly the same object, or another name.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DataType) or self.name != other.name:
            return False
        mine = (self.precision, self.scale, self.element, self.fields)
        return mine == (other.precision, other.scale, other.element, other.fields)

    def __hash__(self) -> int:
        return hash(self.name) ^ self.precision << 8 ^ self.scale

    def __repr__(self) -> str:
        return f"DataType({str(self)!r})"

    def __str__(self) -> str:
        match self.name:
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
            case "array":
                return f"array<{self.element}>"
            case "struct":
                return f"struct<{','.join(f'{quote_name(name)}:{type_}' for name, type_ in self.fields)}>"
            case "map":
                return f"map<{self.fields[0][1]},{self.fields[1][1]}>"
            case name:
                return name

    @property
    def is_integral(self) -> bool:
        return self.name in INTEGER_BITS

    @property
    def is_fractional(self) -> bool:
        return self.name in ("float", "double", "decimal")

    @property
    def is_numeric(self) -> bool:
        return self.is_integral or self.is_fractional

    @property
    def is_datetime(self) -> bool:
        return self.name in ("date", "timestamp", "timestamp_ntz")

    @property
    def is_scalar(self) -> bool:
        """Whether values have an order, so that a filter can compare them."""
        return self.name in _SCALARS or self.name == "decimal"

    @property
    def is_filterable(self) -> bool:
        """Whether a filter can speak of an attribute of this type at all."""
        return self.is_scalar or (self.name == "array" and self.element is not None and self.element.is_scalar)

    @property
    def integer_range(self) -> tuple[int, int]:
        """Least and greatest value of an integral type."""
        half = 1 << (INTEGER_BITS[self.name] - 1)
        return -half, half - 1


BOOLEAN = DataType("boolean")
TINYINT = DataType("tinyint")
SMALLINT = DataType("smallint")
INT = DataType("int")
BIGINT = DataType("bigint")
FLOAT = DataType("float")
DOUBLE = DataType("double")
STRING = DataType("string")
DATE = DataType("date")
TIMESTAMP = DataType("timestamp")
TIMESTAMP_NTZ = DataType("timestamp_ntz")
BINARY = DataType("binary")
VOID = DataType("void")  # of a bare NULL, as Spark calls it

_CONSTANTS = {
    type_.name: type_
    for type_ in (
        BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY, VOID,
    )
}  # fmt: skip


@lru_cache(maxsize=1024)
def decimal(precision: int, scale: int) -> DataType:
    """The type decimal(precision, scale), checked."""
    if not (1 <= precision <= MAX_PRECISION and 0 <= scale <= precision):
        raise DomainError(
            f"type: decimal({precision},{scale}) is out of range; "
            f"the precision is 1 to {MAX_PRECISION}, the scale 0 to the precision"
        )
    return DataType("decimal", precision, scale)


def array(element: DataType) -> DataType:
    return DataType("array", element=element)


def struct(*fields: tuple[str, DataType]) -> DataType:
    return DataType("struct", fields=fields)


def mapping(key: DataType, value: DataType) -> DataType:
    return DataType("map", fields=(("key", key), ("value", value)))


@lru_cache(maxsize=4096)
def parse_type(text: str) -> DataType:
    """Read a type as Spark SQL writes it, nested ones included."""
    reader = _TypeReader(text)
    parsed = reader.read_type()
    reader.expect("")
    return parsed


def quote_name(name: str) -> str:
    """One part of a name as a filter writes it: in back-quotes unless it is a plain word."""
    return name if name.isidentifier() and name.isascii() else "`" + name.replace("`", "``") + "`"


def _shown(token: str) -> str:
    return f"'{token}'" if token else "its end"


class _TypeReader:
    """Recursive descent over the words of one type."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = [*_TOKEN.findall(text), ""]  # an empty token ends the text
        self.at = 0
        self.depth = 0

    def next(self) -> str:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def accept(self, token: str) -> bool:
        found = self.tokens[self.at] == token
        if found:
            self.next()
        return found

    def expect(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise self.malformed(f"expected {_shown(token)}, found {_shown(found)}")

    def malformed(self, reason: str) -> DomainError:
        shown = self.text if len(self.text) <= 60 else self.text[:60] + "…"
        return DomainError(
            f"type: '{shown}' is not a type as Spark SQL writes one, such as struct<a:int,b:array<string>>; {reason}"
        )

    def read_type(self) -> DataType:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.malformed(f"it is more than {_MAX_DEPTH} levels deep")
        try:
            return self.read_one(self.next())
        finally:
            self.depth -= 1

    def read_one(self, written: str) -> DataType:
        word = _SYNONYMS.get(written.lower(), written.lower())
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        match word:
            case "decimal":
                return decimal(*self.read_numbers(default=(10, 0)))
            case "char" | "varchar":
                self.read_numbers(default=(0, 0))
                return STRING
            case "array":
                self.expect("<")
                element = self.read_type()
                self.expect(">")
                return array(element)
            case "map":
                self.expect("<")
                key = self.read_type()
                self.expect(",")
                value = self.read_type()
                self.expect(">")
                return mapping(key, value)
            case "struct":
                return struct(*self.read_fields())
            case "":
                raise self.malformed("a type is missing")
        known = [*_SCALARS, "decimal(p,s)", "array<…>", "struct<…>", "map<…>", "binary"]
        raise DomainError(f"type: unknown type '{written[:60]}'; {did_you_mean(word, known)}")

    def read_numbers(self, default: tuple[int, int]) -> tuple[int, int]:
        """`(p,s)`, `(p)` or nothing."""
        if not self.accept("("):
            return default
        first, second = self.next(), "0"
        if self.accept(","):
            second = self.next()
        self.expect(")")
        if not (first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
            raise self.malformed("expected whole numbers between the parentheses")
        return int(first[:4]), int(second[:4])

    def read_fields(self) -> list[tuple[str, DataType]]:
        self.expect("<")
        fields: dict[str, DataType] = {}
        while True:
            token = self.next()
            name = token[1:-1].replace("``", "`") if token.startswith("`") else token
            if not name or token in _PUNCTUATION:
                raise self.malformed("a field's name is missing")
            if name in fields:
                raise self.malformed(f"the field '{name}' is there twice")
            self.accept(":")
            fields[name] = self.read_type()
            if not self.accept(","):
                self.expect(">")
                return list(fields.items())
