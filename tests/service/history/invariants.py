"""What is promised, each a function from a history to the lines that say where the promise was broken."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator

from .history import Event, History, Key, Subscription
from .records import Delivery, Fault, Phase

TOO_MANY = "wait to be matched"  # what a refusal says when a domain's events wait
TOLD_SECONDS = 5.0  # after which the one who refuses is to know what was matched
TIME_SECONDS = 2.0  # by which two clocks of a machine may differ
BESIDE_TIMES, BESIDE_SECONDS = 3.0, 1.0  # how much later than alone a tenant's events may come while others work


def i1_everything_that_matches_is_delivered(history: History) -> Iterator[str]:
    """Every acked event × every subscription active at its position that matches: delivered, or dead with a reason."""
    got = {(one.subscription, one.position) for one in history.deliveries}
    dead = {(one.subscription, one.position): one.reason for one in history.dead}
    yield from _wrongly_dead(history, dead)
    by_domain: dict[tuple[str, str], list[Subscription]] = defaultdict(list)
    for subscription in history.subscriptions.values():
        yield from _starts_too_late(history, subscription)
        if subscription.is_read_to_the_end:
            by_domain[subscription.tenant, subscription.domain].append(subscription)
    for event in history.acked:
        assert event.position is not None
        for subscription in by_domain[event.key[:2]]:
            place = (subscription.id, event.position)
            if place in got or place in dead or subscription.may_be_lost(event.position):
                continue
            if subscription.must_get(event.position, event.data):
                stage = subscription.at(event.position)[-1]
                yield (
                    f"event {event} at position {event.position} matches subscription {subscription.id} "
                    f"({stage.text}, from {stage.highest:.0f}) and was neither delivered nor is it a dead letter: "
                    f"{event.data}"
                )


def _wrongly_dead(history: History, dead: dict[tuple[str, int], str]) -> Iterator[str]:
    """Dead letters without a reason, with one that is not true or not expected; and subscriptions that have failed."""
    logged = {one.position for one in history.logged}
    expected = tuple(reason for one in history.dead_for for reason in one.reasons)
    for (id_, position), reason in dead.items():
        if not reason.strip():
            yield f"subscription {id_}: the dead letter at position {position} has no reason"
        if "retention" in reason and position in logged:
            yield f"subscription {id_}: position {position} is dead ({reason}), and the log has it"
        if history.dead_for and not reason.startswith(expected):
            yield f"subscription {id_}: position {position} is dead ({reason}), and nothing was done that explains it"
    for subscription in history.subscriptions.values():
        for change in subscription.changes:
            if change.action == "fail":
                yield f"subscription {subscription.id} has failed: {change.filter}"


def _starts_too_late(history: History, subscription: Subscription) -> Iterator[str]:
    """An event that was sent after a filter's change was answered is the new filter's."""
    for change in subscription.changes:
        if change.outcome == "acked" and change.filter_from is not None:
            _, highest = history.moments.bounds(change.sent, change.answered)
            if change.filter_from > highest:
                yield (
                    f"subscription {subscription.id}: {change.action} was answered with position {change.filter_from}, "
                    f"but an event sent after the answer is at position {highest:.0f}"
                )


def i2_nothing_else_is_delivered(history: History) -> Iterator[str]:
    """Nothing to a subscription that does not match, is inactive, or is another tenant's; and nothing made up."""
    for subscription in history.subscriptions.values():
        yield from _starts_too_early(history, subscription)
    for one in history.deliveries:
        subscription = history.subscriptions.get(one.subscription)
        where = f"subscription {one.subscription} got position {one.position} ({one.source} {one.id})"
        if subscription is None:
            yield f"{where}, and nobody made that subscription"
            continue
        if one.tenant != subscription.tenant:
            yield f"{where} as tenant {one.tenant}, and it is {subscription.tenant}'s"
        event = history.events.get((subscription.tenant, subscription.domain, one.source, one.id))
        if event is None:
            others = [key for key in history.events if key[2:] == (one.source, one.id)]
            whose = f"; it is of {'.'.join(others[0][:2])}" if others else ""
            yield f"{where}, which nobody published to {subscription.tenant}.{subscription.domain}{whose}"
            continue
        if one.event != event.data:
            yield f"{where} as {one.event}, and {event.data} was published"
        if event.position is not None and event.position != one.position:
            yield f"{where}, which was acked at position {event.position}"
        if not subscription.may_get(one.position, event.data):
            filters = " or ".join(stage.text for stage in subscription.at(one.position))
            yield f"{where}, where its filter is ({filters}) and the event {event.data}"
        if one.asked > subscription.deleted:
            yield f"{where} {one.asked - subscription.deleted:.3f} s after it was deleted"
        for began, ended in subscription.pauses:
            if began < one.asked and one.received < ended:
                yield f"{where} while it was paused"


def _starts_too_early(history: History, subscription: Subscription) -> Iterator[str]:
    """An event that was answered before a filter's change was sent is the old filter's."""
    before: tuple[object, int] | None = None
    for change in subscription.changes:
        if change.outcome == "acked" and change.filter_from is not None:
            same = before == (change.predicate, change.filter_from)  # no change at all: it holds since it did
            before = (change.predicate, change.filter_from)
            lowest, _ = history.moments.bounds(change.sent, change.answered)
            if change.filter_from < lowest and not same:
                yield (
                    f"subscription {subscription.id}: {change.action} was answered with position {change.filter_from}, "
                    f"but an event answered before it was sent is at position {lowest - 1:.0f}"
                )
        if change.since is not None and change.replay_from is not None:
            lowest = history.moments.begins(change.since - TIME_SECONDS)
            if change.replay_from < lowest:
                yield (
                    f"subscription {subscription.id}: history since {change.sent - change.since:.1f} s before it was "
                    f"asked for begins at position {change.replay_from}, but position {lowest - 1:.0f} is older"
                )


def i3_publishers_keep_their_order(history: History) -> Iterator[str]:
    """Positions, and first deliveries to a subscription, are in publish order for each publisher."""
    by_publisher: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in history.acked:
        assert event.position is not None
        by_publisher[event.first.publisher].append((event.first.sequence, event.position))
    for publisher, places in by_publisher.items():
        places.sort()
        for (sequence, position), (later, after) in itertools.pairwise(places):
            if after < position:
                yield f"publisher {publisher}: #{sequence} is at position {position}, and #{later} at {after}"
    last: dict[tuple[str, str], tuple[int, Delivery]] = {}
    seen: set[tuple[str, int]] = set()
    for one in history.deliveries:
        event = _event_of(history, one)
        # One that was given up without an answer may arrive late: nothing was said of its order.
        if event is None or event.outcome != "acked" or (one.subscription, one.position) in seen:
            continue
        seen.add((one.subscription, one.position))
        place = (one.subscription, event.first.publisher)
        if place in last and last[place][0] > event.first.sequence:
            yield (
                f"subscription {one.subscription}: got #{event.first.sequence} of publisher {place[1]} (position "
                f"{one.position}) after #{last[place][0]} (position {last[place][1].position})"
            )
        last[place] = (max(event.first.sequence, last[place][0] if place in last else -1), one)


def i4_the_log_is_whole(history: History) -> Iterator[str]:
    """Positions without a gap, checksums right, and every acked event where it was said to be."""
    at: dict[int, Key] = {}
    for event in history.acked:
        for attempt in event.attempts:
            if attempt.outcome == "acked" and attempt.position is not None:
                other = at.setdefault(attempt.position, event.key)
                if other != event.key:
                    yield f"position {attempt.position} was answered for {event} and for {history.events[other]}"
    if not history.log_ends:
        return
    start, end = history.log_ends[-1].start, history.log_ends[-1].end
    logged = {one.position: one for one in history.logged}
    if len(logged) < len(history.logged):
        yield f"the log has {len(history.logged) - len(logged)} positions twice"
    for position in range(start, end):
        if position not in logged:
            yield f"the log from {start} to {end} has nothing at position {position}"
    for position, one in logged.items():
        if not one.intact:
            yield f"the log's checksum at position {position} is wrong"
        if not start <= position < end:
            yield f"the log says it is from {start} to {end}, and has position {position}"
    for event in history.acked:
        assert event.position is not None
        found = logged.get(event.position)
        if found is None and history.log_ends[-1].retained and event.position < start:
            continue
        if found is None:
            yield f"event {event} was acked at position {event.position}, where the log has nothing"
        elif (found.tenant, found.domain, found.source, found.id) != event.key or found.event != event.data:
            yield (
                f"event {event} was acked at position {event.position}, where the log has {found.source} {found.id}: "
                f"{found.event}"
            )


def i5_effects_are_unique(history: History) -> Iterator[str]:
    """After dedupe by position there is one of each; and what was acknowledged does not come again."""
    position_of: dict[tuple[str, str, str], int] = {}
    event_at: dict[tuple[str, int], tuple[str, str]] = {}
    in_answer: set[tuple[str, str, int]] = set()
    acked: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for ack in history.acks:
        if ack.outcome == "acked" and ack.answered is not None:
            acked[ack.subscription].append((ack.answered, ack.position))
    for one in history.deliveries:
        whose, name = f"subscription {one.subscription}", (one.source, one.id)
        first = position_of.setdefault((one.subscription, *name), one.position)
        if first != one.position:
            yield f"{whose}: {' '.join(name)} was delivered at positions {first} and {one.position}"
        other = event_at.setdefault((one.subscription, one.position), name)
        if other != name:
            yield f"{whose}: position {one.position} was {' '.join(other)}, then {' '.join(name)}"
        place = (one.subscription, one.request, one.position)
        if place in in_answer:
            yield f"{whose}: position {one.position} is twice in one {one.channel} ({one.request})"
        in_answer.add(place)
        if any(answered < one.asked and one.position <= position for answered, position in acked[one.subscription]):
            yield f"{whose}: position {one.position} came again after it was acknowledged"


def i6_an_unknown_outcome_is_none_or_one(history: History) -> Iterator[str]:
    """An event that was sent more than once, or whose answer was lost, has one position at most; a refused one none."""
    places: dict[Key, set[int]] = defaultdict(set)
    for logged in history.logged:
        places[logged.tenant, logged.domain, logged.source, logged.id].add(logged.position)
    for one in history.deliveries:
        event = _event_of(history, one)
        if event is not None:
            places[event.key].add(one.position)
    for event in history.events.values():
        positions = places[event.key] | {
            attempt.position
            for attempt in event.attempts
            if attempt.outcome == "acked" and attempt.position is not None
        }
        bodies = [attempt.event for attempt in event.attempts if attempt.outcome == "acked"]
        if any(body != bodies[0] for body in bodies):
            yield f"event {event} was acked with two bodies: {bodies[0]} and another"
        if len(positions) > 1:
            yield f"event {event}, {event.outcome}, is at positions {', '.join(map(str, sorted(positions)))}"
        if positions and event.outcome == "refused":
            yield f"event {event} was refused, and is at position {min(positions)}"


def i7_recovery_is_bounded(history: History) -> Iterator[str]:
    """After a fault, something that was published since is delivered within the bound, to every tenant."""
    for fault in history.faults:
        seconds = recovery_seconds(history, fault)
        if seconds is None:
            yield f"fault '{fault.name}': nothing that was published after it was ever delivered"
        elif seconds > fault.bound_seconds:
            yield f"fault '{fault.name}': recovered after {seconds:.1f} s, and {fault.bound_seconds:g} s are allowed"


def i8_sizes_are_bounded(history: History) -> Iterator[str]:
    """Memory and queues stay below their limits, were looked at, and are not called full when they are empty."""
    yield from _refused_for_nothing(history)
    largest: dict[str, float] = {}
    for sample in history.samples:
        largest[sample.what] = max(largest.get(sample.what, 0.0), sample.size)
    for limit in history.limits:
        if limit.what not in largest:
            yield f"{limit.what} has a limit of {limit.largest:,.0f}, and was never measured"
        elif largest[limit.what] > limit.largest:
            yield f"{limit.what} reached {largest[limit.what]:,.0f}, and {limit.largest:,.0f} are allowed"


def _refused_for_nothing(history: History) -> Iterator[str]:
    """Too many events of a domain wait to be matched, it is said, and all that it had were delivered before."""
    first: dict[Key, float] = {}
    for one in history.deliveries:
        event = _event_of(history, one)
        if event is not None:
            first.setdefault(event.key, one.received)
    delivered = {key: _delivered_until(events, first) for key, events in _acked_by_domain(history).items()}
    for event in history.events.values():
        for attempt in event.attempts:
            if attempt.outcome != "refused" or TOO_MANY not in attempt.reason:
                continue
            answered, until = delivered.get(event.key[:2], ([], []))
            before = bisect.bisect_left(answered, attempt.sent)
            if before == 0 or until[before - 1] < attempt.sent - TOLD_SECONDS:
                yield (
                    f"event {event} was refused ({attempt.reason}) when all {before} events of its domain "
                    "had been delivered"
                )


def _acked_by_domain(history: History) -> dict[tuple[str, str], list[Event]]:
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in history.acked:
        found[event.key[0], event.key[1]].append(event)
    return found


def _delivered_until(events: list[Event], first: dict[Key, float]) -> tuple[list[float], list[float]]:
    """When each event was acknowledged, in order, and by when all up to it had been delivered."""
    times = [(one.acked.answered, one.key) for one in events if one.acked is not None]
    known = sorted((answered, key) for answered, key in times if answered is not None)
    until = itertools.accumulate((first.get(key, math.inf) for _, key in known), max)
    return [answered for answered, _ in known], list(until)


def i9_a_tenant_beside_others_is_served_as_if_alone(history: History) -> Iterator[str]:
    """What it asks for within its quotas is always served, and what it publishes is delivered as soon as when alone."""
    for phase in history.phases:
        if phase.name == "beside":
            yield from _unserved(history, phase)
            alone = delivery_seconds(history, phase.tenant, "alone")
            beside = delivery_seconds(history, phase.tenant, "beside")
            allowed = BESIDE_TIMES * percentile(alone, 0.99) + BESIDE_SECONDS
            if not alone or not beside:
                yield f"tenant {phase.tenant} got nothing that was published while it was alone, or beside others"
            elif percentile(beside, 0.99) > allowed:
                yield (
                    f"tenant {phase.tenant}: p99 from publishing to delivery was {percentile(beside, 0.99):.2f} s "
                    f"beside others and {percentile(alone, 0.99):.2f} s alone; {allowed:.2f} s are allowed"
                )


def _unserved(history: History, phase: Phase) -> Iterator[str]:
    """What a tenant asked for in a phase, and was refused or not answered: what ended after it says nothing of it."""
    for event in history.events.values():
        for attempt in event.attempts:
            over = attempt.sent if attempt.over is None else attempt.over
            ours = attempt.tenant == phase.tenant and phase.began <= attempt.sent and over <= phase.ended
            if ours and attempt.outcome != "acked":
                yield (
                    f"tenant {phase.tenant} was not served event {event}, {attempt.outcome}, while others were at "
                    f"work: {attempt.reason}"
                )
    for one in history.unserved:
        if one.tenant == phase.tenant and phase.began <= one.sent and one.over <= phase.ended:
            yield f"tenant {phase.tenant} was not served a {one.what} while others were at work: {one.reason}"


INVARIANTS: dict[str, Callable[[History], Iterator[str]]] = {
    "I1": i1_everything_that_matches_is_delivered,
    "I2": i2_nothing_else_is_delivered,
    "I3": i3_publishers_keep_their_order,
    "I4": i4_the_log_is_whole,
    "I5": i5_effects_are_unique,
    "I6": i6_an_unknown_outcome_is_none_or_one,
    "I7": i7_recovery_is_bounded,
    "I8": i8_sizes_are_bounded,
    "I9": i9_a_tenant_beside_others_is_served_as_if_alone,
}
TIMED = frozenset(("I7", "I9"))  # which speak of seconds, and so of the machine too


def delivery_seconds(history: History, tenant: str, phase: str) -> list[float]:
    """From the first attempt to publish to the first delivery, of what a tenant sent in a phase, in order of size."""
    first: dict[Key, float] = {}
    for one in history.deliveries:
        event = _event_of(history, one)
        if event is not None and event.key[0] == tenant:
            first.setdefault(event.key, one.received - event.first.sent)
    during = [(one.began, one.ended) for one in history.phases if (one.name, one.tenant) == (phase, tenant)]
    return sorted(
        seconds
        for key, seconds in first.items()
        if any(began <= history.events[key].first.sent <= ended for began, ended in during)
    )


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def recovery_seconds(history: History, fault: Fault) -> float | None:
    """From the end of a fault until every tenant has got something that was sent after it."""
    first: dict[str, float] = {}
    for one in history.deliveries:
        if one.received >= fault.over and one.tenant not in first and fault.channel in (None, one.channel):
            event = _event_of(history, one)
            if event is not None and event.first.sent >= fault.over and _counts(fault, event):
                first[one.tenant] = one.received - fault.over
    return max(first.values(), default=None)


def _counts(fault: Fault, event: Event) -> bool:
    return fault.tenant in (None, event.key[0]) and fault.domain in (None, event.key[1])


def _event_of(history: History, one: Delivery) -> Event | None:
    subscription = history.subscriptions.get(one.subscription)
    if subscription is None:
        return None
    return history.events.get((subscription.tenant, subscription.domain, one.source, one.id))
