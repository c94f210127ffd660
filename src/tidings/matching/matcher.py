"""Match batches of events against a table of filters, exactly, by arrays.

Every box of the filters' normal form is tried against every event, a block at a time; the
residuals are then evaluated on the events that are left.
"""

from __future__ import annotations

from typing import Any
from typing import Literal as Choice

import numpy as np
import numpy.typing as npt

from tidings.errors import FilterError, SubscriptionError, did_you_mean
from tidings.matching.columns import Columns, Mask
from tidings.matching.evaluate import true_rows
from tidings.matching.explain import Explanation, explain, nearest
from tidings.matching.matches import Matches
from tidings.model.domain import Domain
from tidings.model.event import read_events, read_record
from tidings.model.filter.columnar import FilterTable
from tidings.model.filter.compile import compile_filters
from tidings.model.filter.parse import parse_filter
from tidings.model.infer import infer_domain
from tidings.model.subscription import read_subscriptions

_BLOCK_CELLS = 1 << 22  # boxes × events compared at once: what fits a cache, as bytes
_BLOCK_EVENTS = 1024


class Matcher:
    """An exact matcher over a set of subscriptions.

    `subscriptions` are (id, filter) pairs, Subscription objects, a dict of filters by id, an
    Arrow table or a data frame with columns id and filter. Without a domain, the first events
    that are matched give it.

    >>> matcher = Matcher([("cheap", "price < 10"), ("oil", "symbol = 'OIL' AND price > 50")])
    >>> matcher.match([{"symbol": "OIL", "price": 8.5}, {"symbol": "OIL", "price": 70.0}]).pairs()
    [(0, 'cheap'), (1, 'oil')]
    """

    def __init__(self, subscriptions: Any, domain: Domain | None = None) -> None:
        self._table = read_subscriptions(subscriptions)
        self._slots: dict[str | int, int] | None = None
        self._filters = None if domain is None else self._compile(domain)

    @property
    def domain(self) -> Domain | None:
        """The domain of the events: as given, or inferred from the first events matched."""
        return None if self._filters is None else self._filters.domain

    def __len__(self) -> int:
        return len(self._table)

    def match(self, events: Any, positions: Any = None, *, on_error: Choice["raise", "reject"] = "raise") -> Matches:
        """The subscriptions that each event matches.

        `events` is a list of dicts, an Arrow table, or a pandas or Polars frame. With
        `positions`, one for each event, a subscription counts only within its validity. An
        event that does not fit the domain raises, or with `on_error="reject"` matches nothing
        and is listed in `rejects`.
        """
        filters = self._filters
        if filters is None:
            filters = self._filters = self._compile(infer_domain(events))
        batch = read_events(events, filters.domain, on_error=on_error)
        count = batch.count + len({reject.row for reject in batch.rejects})
        rows, slots = _match(filters, Columns(batch))
        found = batch.rows[rows]
        if positions is not None:
            valid = self._valid(np.asarray(positions, np.int64), count, found, slots)
            found, slots = found[valid], slots[valid]
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(found, minlength=count), out=offsets[1:])
        return Matches(offsets, slots, self._table.ids, batch.rejects)

    def explain(self, event: dict[str, Any], subscription_id: str | int) -> Explanation:
        """Why an event matches a subscription, or why not: predicate by predicate, with the values."""
        domain = self._domain_for(event)
        text = self._table.filters[self._slot(subscription_id)].as_py()
        record = read_record(event, domain)
        return explain(parse_filter(text, domain), record, subscription=subscription_id, text=text)

    def nearest(self, event: dict[str, Any], limit: int = 5) -> list[Explanation]:
        """The subscriptions that an event came nearest to without matching: fewest failing predicates first."""
        domain = self._domain_for(event)
        record = read_record(event, domain)
        filters = ((entry.id, entry.filter, parse_filter(entry.filter, domain)) for entry in self._table)
        return nearest(filters, record, limit=limit)

    def _domain_for(self, event: dict[str, Any]) -> Domain:
        return self._filters.domain if self._filters is not None else infer_domain([event])

    def _slot(self, subscription_id: str | int) -> int:
        if self._slots is None:
            ids: list[Any] = self._table.ids.to_pylist()
            self._slots = {id_: slot for slot, id_ in enumerate(ids)}
        if subscription_id not in self._slots:
            hint = did_you_mean(str(subscription_id), map(str, list(self._slots)[:10_000]))
            raise SubscriptionError(f"no subscription '{subscription_id}'; {hint}")
        return self._slots[subscription_id]

    def _compile(self, domain: Domain) -> FilterTable:
        filters = compile_filters(self._table.filters, domain, on_error="reject")
        if filters.rejects:
            row, error = filters.rejects[0]
            more = f" ({len(filters.rejects):,} filters in all cannot be read)" if len(filters.rejects) > 1 else ""
            reason = f"subscription '{self._table.ids[row].as_py()}': {error.reason}"
            raise FilterError(reason, column=error.column, hint=error.hint + more) from error
        return filters

    def _valid(
        self, positions: npt.NDArray[np.int64], count: int, events: npt.NDArray[np.int64], slots: npt.NDArray[np.int32]
    ) -> Mask:
        if len(positions) != count:
            raise ValueError(f"{len(positions)} positions for {count} events; give one for each")
        at = positions[events]
        valid = np.ones(len(slots), bool)
        for column, outside in ((self._table.valid_from, np.less), (self._table.valid_to, np.greater_equal)):
            if column is not None:
                bounded = column.is_valid().to_numpy(zero_copy_only=False)[slots]
                bound = column.fill_null(0).to_numpy(zero_copy_only=False)[slots]
                valid &= ~(bounded & outside(at, bound))
        return valid


def _match(filters: FilterTable, columns: Columns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The matches as (event, filter), ascending."""
    codes = {path: columns.codes(path, intervals) for path, intervals in filters.intervals.items()}
    events, found = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    boxes_at_once = max(1, _BLOCK_CELLS // _BLOCK_EVENTS)
    for first_event in range(0, columns.batch.count, _BLOCK_EVENTS):
        block = slice(first_event, min(first_event + _BLOCK_EVENTS, columns.batch.count))
        for first_box in range(0, filters.boxes, boxes_at_once):
            last_box = min(first_box + boxes_at_once, filters.boxes)
            inside = np.ones((last_box - first_box, block.stop - block.start), bool)
            for path, intervals in filters.intervals.items():
                values, valid = codes[path]
                _keep_within(inside, intervals, first_box, last_box, values[block], valid[block])
            _keep_residuals(inside, filters, first_box, columns, block)
            box, event = np.nonzero(inside)
            events.append(event + first_event)
            found.append(filters.box_filter[box + first_box])
    # A filter may hold an event in several of its boxes: it matches once.
    keys = np.unique(np.concatenate(events) * max(1, filters.count) + np.concatenate(found))
    return keys // max(1, filters.count), (keys % max(1, filters.count)).astype(np.int32)


def _keep_within(
    inside: Mask, intervals: Any, first: int, last: int, codes: npt.NDArray[np.int64], valid: Mask
) -> None:
    """Drop from `inside` (boxes × events) what is outside the intervals of one attribute."""
    rows = slice(*np.searchsorted(intervals.boxes, (first, last)))
    boxes = intervals.boxes[rows] - first
    within = (codes >= intervals.lows[rows, None]) & (codes <= intervals.highs[rows, None]) & valid
    if len(boxes) > 1 and (boxes[1:] == boxes[:-1]).any():
        starts = np.flatnonzero(np.r_[True, boxes[1:] != boxes[:-1]])
        boxes, within = boxes[starts], np.logical_or.reduceat(within, starts, axis=0)
    nulls = intervals.null_boxes[slice(*np.searchsorted(intervals.null_boxes, (first, last)))] - first
    if len(nulls):
        accepted = np.zeros((len(inside), inside.shape[1]), bool)
        accepted[boxes] = within
        accepted[nulls] |= ~valid
        boxes = np.union1d(boxes, nulls)
        within = accepted[boxes]
    inside[boxes] &= within


def _keep_residuals(inside: Mask, filters: FilterTable, first: int, columns: Columns, block: slice) -> None:
    """Evaluate what is left to decide, on the events that are left."""
    residual_of = filters.residual_of[first : first + len(inside)]
    for number in np.unique(residual_of[residual_of >= 0]):
        boxes = np.flatnonzero(residual_of == number)
        rows = np.flatnonzero(inside[boxes].any(axis=0))
        if len(rows):
            true = np.zeros(inside.shape[1], bool)
            true[rows] = true_rows(filters.residuals[number], columns, rows + block.start)
            inside[boxes] &= true
