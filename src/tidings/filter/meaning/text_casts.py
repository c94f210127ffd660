"""Texts read as booleans, numbers, dates and timestamps, by the rules of Spark's `CAST`; None where Spark refuses.

White space and control characters at both ends do not count. For fractions Java's narrower
notion of them holds, which keeps DEL.

Dates are days and timestamps microseconds since 1970, in the Gregorian calendar carried back before its beginning,
with a year 0. A timestamp without a zone is in UTC.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

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


DAY_US = 86_400_000_000
_CYCLE_DAYS = 146_097  # the calendar, week days and all, repeats after 400 years
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_FIRST_DAY = date.min.toordinal() - _EPOCH_ORDINAL
_LAST_DAY = date.max.toordinal() - _EPOCH_ORDINAL

_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^.0-9].*)?)?)?"
_TIMESTAMP = re.compile(rf"([+-]?)([0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_TIME})?)?)?", re.DOTALL)

_OFFSET = re.compile(r"([+-])(?:([0-9])|([0-9]{2})(?:([0-9]{2})([0-9]{2})?|:([0-9]{2})(?::([0-9]{2}))?)?)")
_ONE_DIGIT_HOUR = re.compile(r"([+-])([0-9]):")
_ONE_DIGIT_MINUTE = re.compile(r"([+-][0-9]{2}):([0-9])$")
# What Java calls ZoneId.SHORT_IDS.
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_NOT_IN_JAVA = frozenset(("Factory", "ROC", "localtime", "posixrules"))


def read_date(text: str) -> int | None:
    """`[+-]yyyy[-[m]m[-[d]d]]`; after a whole date and a blank or `T` anything may follow."""
    found = _DATE.fullmatch(text.strip(BLANK))
    if not found:
        return None
    days = _days_of(*found.groups())
    return days if days is not None and -INT32_MAX - 1 <= days <= INT32_MAX else None


def read_timestamp(text: str) -> int | None:
    """`date[( |T)h[:m[:s[.fraction][zone]]]]`; digits of the fraction after the sixth are cut off.

    A time of day without a date is None. (Spark puts today's date before it, so that its answer
    depends on the clock.)
    """
    local, zone = _read_local(text)
    if local is None:
        return None
    instant = local - (_offset_us(zone, local) if isinstance(zone, ZoneInfo) else zone)
    return instant if -INT64_MAX - 1 <= instant <= INT64_MAX else None


def read_timestamp_ntz(text: str) -> int | None:
    """As `read_timestamp`, but a zone, though it must be one, is left out of account."""
    local, _ = _read_local(text)
    return local if local is not None and -INT64_MAX - 1 <= local <= INT64_MAX else None


def _read_local(text: str) -> tuple[int | None, int | ZoneInfo]:
    """The time on the wall, and the zone as an offset in microseconds or by its rules."""
    found = _TIMESTAMP.fullmatch(text.strip(BLANK))
    if not found:
        return None, 0
    *ymd, hour, minute, second, fraction, zone_text = found.groups()
    days = _days_of(*ymd)
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if days is None or hours > 23 or minutes > 59 or seconds > 59:
        return None, 0
    zone = 0 if zone_text is None else _read_zone(zone_text.strip(JAVA_BLANK))
    if zone is None:
        return None, 0
    microseconds = int((fraction or "").ljust(6, "0")[:6])
    return days * DAY_US + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + microseconds, zone


def _days_of(sign: str, year: str, month: str | None, day: str | None) -> int | None:
    cycles, year_of_cycle = divmod(-int(year) if sign == "-" else int(year), 400)
    try:
        ordinal = date(year_of_cycle + 400, int(month or 1), int(day or 1)).toordinal()
    except ValueError:
        return None
    return ordinal - _EPOCH_ORDINAL + (cycles - 1) * _CYCLE_DAYS


@lru_cache(maxsize=1024)
def _read_zone(text: str) -> int | ZoneInfo | None:
    """`Z`, `+h`, `+hh:mm`, `UTC+1`, `GMT`, `Europe/Paris` …, as Java's `ZoneId.of` takes them."""
    text = _ONE_DIGIT_HOUR.sub(r"\g<1>0\2:", text, count=1)
    text = _ONE_DIGIT_MINUTE.sub(r"\1:0\2", text)
    text = _SHORT_ZONES.get(text, text)
    if text in ("Z", "UTC", "GMT", "UT"):
        return 0
    for prefix in ("", "UTC", "GMT", "UT"):
        if text.startswith((prefix + "+", prefix + "-")):
            return _read_offset(text.removeprefix(prefix))
    return ZoneInfo(text) if text in _regions() else None


def _read_offset(text: str) -> int | None:
    found = _OFFSET.fullmatch(text)
    if not found:
        return None
    sign, *digits = found.groups(default="")
    hour, two_digits, minute, second, minute_after_colon, second_after_colon = digits
    minutes, seconds = int(minute or minute_after_colon or 0), int(second or second_after_colon or 0)
    total = int(hour or two_digits) * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        return None
    return (-total if sign == "-" else total) * 1_000_000


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    return frozenset(available_timezones()) - _NOT_IN_JAVA


def _offset_us(zone: ZoneInfo, local: int) -> int:
    """How far the zone is ahead of UTC at that time on the wall.

    A time that comes twice is the first of the two, one that is skipped is counted with the
    offset before the gap, as in Java. Python's calendar ends at the years 1 and 9999: before
    it no zone had yet changed, after it the rules repeat with the calendar.
    """
    days, rest = divmod(local, DAY_US)
    if days > _LAST_DAY:
        days -= -((_LAST_DAY - days) // _CYCLE_DAYS) * _CYCLE_DAYS
    moment = datetime.fromordinal(max(days, _FIRST_DAY) + _EPOCH_ORDINAL) + timedelta(microseconds=rest)
    offset = zone.utcoffset(moment)
    assert offset is not None
    return offset // timedelta(microseconds=1)
