"""Texts read as booleans and numbers, by the rules of Spark's `CAST`; None where Spark refuses.

White space and control characters at both ends do not count. For fractions Java's narrower
notion of them holds, which keeps DEL.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

JAVA_BLANK = "".join(map(chr, range(0x21)))
BLANK = JAVA_BLANK + "\x7f"
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FRACTION = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEX_FRACTION = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?0*([0-9]{1,9}))?")
_NAMED_FRACTIONS = {
    "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "+infinity": math.inf,
    "-inf": -math.inf, "-infinity": -math.inf, "nan": math.nan,
}  # fmt: skip
_BOOLEANS = dict.fromkeys(("t", "true", "y", "yes", "1"), True) | dict.fromkeys(("f", "false", "n", "no", "0"), False)


def read_boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.strip(BLANK).lower())


def read_bigint(text: str) -> int | None:
    word = text.strip(BLANK)
    if not _INTEGER.fullmatch(word):
        return None
    digits = word.lstrip("+-").lstrip("0") or "0"
    if len(digits) > 19:  # spares int() a text of a million digits
        return None
    number = -int(digits) if word[0] == "-" else int(digits)
    return number if -INT64_MAX - 1 <= number <= INT64_MAX else None


def read_double(text: str) -> float | None:
    """As Java's `Double.parseDouble`, and Spark's own names for the infinities and NaN besides."""
    word = text.strip(JAVA_BLANK)
    if found := _FRACTION.fullmatch(word):
        return float(found[1])
    if found := _HEX_FRACTION.fullmatch(word):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return -math.inf if word[0] == "-" else math.inf
    if word in ("+NaN", "-NaN"):
        return math.nan
    return _NAMED_FRACTIONS.get(word.lower())


def read_decimal(text: str) -> Decimal | None:
    """As Java's `BigDecimal`, but digits are 0 to 9 alone; not yet fitted to a precision."""
    word = text.strip(JAVA_BLANK)
    return Decimal(word) if _DECIMAL.fullmatch(word) else None
