"""A bug that was real, put back: TIDINGS_PLANTED names its row. `after` is given by `points/sitecustomize.py`.

What is put back is the bug's essence, written against the code as it is now. A name that is not there any more fails at
the start, so that a plant that plants nothing is noticed.
"""

import functools
import os
from collections import OrderedDict

ROW = os.environ["TIDINGS_PLANTED"]


def empty_batches_leave_nothing(module):
    """Row 1: the sink is not told of a batch without events, and looks like an old copy at the next start."""
    load = module.load

    @functools.wraps(load)
    def planted(messages, *given, **named):
        if any(getattr(message, "versions", None) for message in messages):
            load(messages, *given, **named)

    module.load = planted


def an_operator_is_waited_for(module):
    """Row 1, the other half: a stream whose checkpoint does not fit its mailboxes does not go on by itself."""
    from tidings.pipeline.job_errors import CheckpointError

    start = module.DomainStream._start_query

    @functools.wraps(start)
    def planted(self, *, recover):
        if recover and not self._context.recover:
            raise CheckpointError(self._problem)
        return start(self, recover=recover)

    module.DomainStream._start_query = planted


def a_read_evicts_its_own_pages(module):
    """Row 2: all pages between two positions of a read go through one small cache, and push each other out."""

    def of(self, positions, domain):
        pages, size = OrderedDict(), 0
        for page in self._log.pages(positions[0], positions[-1] + 1) if len(positions) else ():
            pages[page.first] = page
            size += page.length
            while size > self._max and len(pages) > 1:
                size -= pages.popitem(last=False)[1].length
        for position in positions:
            page = next((one for one in pages.values() if one.first <= position < one.end), None)
            yield None if page is None or page.domain != domain else page.texts()[position - page.first]

    assert module.EventTexts.of
    module.EventTexts.of = of


def accepted_here_refused_there(module):
    """Row 3: a pattern that was accepted is refused when an event comes, and the stream fails."""
    compile_like = module.compile_like

    @functools.wraps(compile_like)
    def planted(pattern, *given):
        if len(pattern) > 1000:
            raise ValueError("pattern too large - compile failed")
        return compile_like(pattern, *given)

    module.compile_like = planted


def written_is_received(module):
    """Row 4: what the socket has taken counts as received, whatever the client says."""
    stream = module.Fetching.stream

    @functools.wraps(stream)
    async def planted(self, tenant, id, last, ack):
        return await stream(self, tenant, id, last, "auto")

    module.Fetching.stream = planted


def everything_waits_at_the_start(module):
    """Row 6: a gateway that starts counts all of a domain's events as not matched, until its stream says otherwise."""
    count_waiting = module.SubscriptionUpkeep._count_waiting

    def planted(self):
        self._matched = lambda key: -1
        count_waiting(self)

    module.SubscriptionUpkeep._count_waiting = planted


def nothing_is_set_aside(module):
    """Row 3, the other half: a stream that fails fails for ever."""
    assert module.set_aside_culprits
    module.set_aside_culprits = lambda *given: False


def any_name_is_taken(module):
    """Row 5: an attribute may have the name of a column of Tidings' own."""
    assert module.is_reserved
    module.is_reserved = lambda name: False


def times_never_go_down(module):
    """Row 7: an append is dated no earlier than the one before it, whatever the clock says."""
    assert module.Log._now

    def planted(self):
        self._time = max(self._time, module.time.time_ns() // 1000)
        return self._time

    module.Log._now = planted


PLANTS = {
    "1": [
        ("tidings.pipeline.sinks.store_sink", empty_batches_leave_nothing),
        ("tidings.service.driver.domain_stream", an_operator_is_waited_for),
    ],
    "2": [("tidings.service.gateway.mailbox_reading", a_read_evicts_its_own_pages)],
    "3": [
        ("tidings.filter.meaning.operators", accepted_here_refused_there),
        ("tidings.service.driver.stream_thread", nothing_is_set_aside),
    ],
    "aside": [("tidings.filter.meaning.operators", accepted_here_refused_there)],
    "4": [("tidings.service.gateway.fetching", written_is_received)],
    "5": [
        ("tidings.model.domain", any_name_is_taken),
        ("tidings.service.driver.stream_thread", nothing_is_set_aside),
    ],
    "6": [("tidings.service.gateway.subscription_changes", everything_waits_at_the_start)],
    "7": [("tidings.store.log.log_writer", times_never_go_down)],
}
for plant in PLANTS[ROW]:
    after(*plant)  # noqa: F821
