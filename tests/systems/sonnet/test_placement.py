"""Sonnet's placement: which group of paths a subscription is held at, and which documents meet it there."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tidings.filter.compile.compiler import compile_filters
from tidings.filter.normal.filter_table import FilterTable
from tidings.filter.syntax.writer import literal_to_sql
from tidings.model.domain import Attribute, Domain
from tidings.model.event import EventBatch, read_events
from tidings.model.types import STRING
from tidings.systems import EVERYWHERE, meet, place, route, statistics_of, view_from_dict, view_to_dict
from tidings.systems.planner.planner import Room, plan
from tidings.systems.sharding import visits_of
from tidings.systems.sonnet import placement as sonnet
from tidings.systems.sonnet.document_header import admits, header_of
from tidings.systems.sonnet.path_digest import Digest, Ordering
from tidings.systems.sonnet.path_groups import Offers, PathGroup, groups_asked, prefix_group, token_group
from tidings.systems.sonnet.paths import lineage_of
from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.testing.real_data import DataMissing
from tidings.testing.xml_workloads import XML_WORKLOADS, dtd
from tidings.xml.document_columns import read_documents
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

NEWS = Domain("news", [Attribute("lang", "string"), Attribute("body", "string")])
RSS = "<rss><channel><title>News</title><item><author>{0}</author><title>{1}</title></item></channel></rss>"
BOOK = "<book><title>{1}</title><isbn>{0}</isbn></book>"


def filters_of(*paths: str) -> FilterTable:
    return compile_filters([f"xpath_boolean(body, {literal_to_sql(path, STRING)})" for path in paths], NEWS)


def events_of(*documents: str | None) -> EventBatch:
    return read_events([{"lang": "en", "body": document} for document in documents], NEWS)


def feeds_and_books(count: int = 40) -> EventBatch:
    texts = [(RSS if number % 2 else BOOK).format(f"A{number % 9}", f"T{number % 5}") for number in range(count)]
    return events_of(*texts)


def held_at(view: sonnet.View, filters: FilterTable) -> dict[int, object]:
    """The group of each subscription, None for the catch-all."""
    placed = place(filters, view)
    owners = view.owners(placed.keys)
    keys = [
        None if owner == EVERYWHERE else view.groups[key // view.partitions][1]
        for owner, key in zip(owners, placed.keys, strict=True)
    ]
    return dict(zip(placed.subscriptions.tolist(), keys, strict=True))


# ---------------------------------------------------------------------- groups


ORDERINGS: list[Ordering] = ["ranks", "hashes"]


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_document_offers_every_group_that_a_query_asks_for_which_it_satisfies(seed: int, ordering: Ordering) -> None:
    random = Random(seed)
    paths = [parse_path(make_path(random), NAMESPACES) for _ in range(150)]
    documents = [make_document(random) for _ in range(40)]
    asked = [groups_asked(path, ordering) for path in paths]
    numbers = {group: number for number, group in enumerate(sorted(set().union(*asked)))}
    offers, columns = Offers(numbers, ordering), read_documents([text.encode() for text in documents], text=True)
    matched = 0
    for number, text in enumerate(documents):
        found, read = offers.of(columns, number), read_document(text)
        for path, groups in zip(paths, asked, strict=True):
            if read.holds(path):
                matched += 1
                assert {numbers[group] for group in groups} <= found, (text, path)
    assert matched > 150


def test_a_query_asks_for_its_beginnings_its_branches_with_their_values_and_its_names() -> None:
    asked = groups_asked(parse_path("/rss/channel[language = 'en']/item//author[. = 'Liu']"))
    assert {group for group in asked if group.length} == {
        prefix_group(tokens)
        for tokens in [
            ("rss",), ("rss", "channel"), ("rss", "channel", "item"), ("rss", "channel", "language"),
            ("rss", "channel", "language", "=en"),
        ]
    }  # fmt: skip
    assert {group.token for group in asked if not group.length} == {
        "rss", "channel", "language", "=en", "item", "author", "=Liu",
    }  # fmt: skip


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_nodes_and_partitions_hold_a_query_at_the_same_groups_and_documents_find_them(ordering: Ordering) -> None:
    random = Random(5)
    paths = [parse_path(make_path(random), NAMESPACES) for _ in range(150)]
    groups: dict[PathGroup, Digest] = {}
    for path in paths:
        above = lineage_of(path, ordering)
        while not (above.is_zero or above.parent is None):
            if not above.digest.truncated and above.tokens[-1][0] != "=":  # a value at the end may be too long for one
                groups[prefix_group(above.tokens, ordering)] = above.digest
                assert prefix_group(above.tokens, ordering) in groups_asked(path, ordering)
            above = above.parent
    offers = Offers({group: number for number, group in enumerate(groups)}, ordering)
    offered = 0
    for _ in range(40):
        text = make_document(random)
        header = header_of(read_document(text), ordering)
        for number in offers.of(read_documents([text.encode()], text=True), 0):
            offered += 1
            assert admits(header, list(groups.values())[number])
    assert offered > 40


def test_what_is_denied_or_one_of_several_is_not_asked_for() -> None:
    asked = groups_asked(parse_path("/a[not(b)][c or d][e != '1'][contains(f, '')]"))
    assert asked == {prefix_group(("a",)), prefix_group(("a", "e")), token_group("a"), token_group("e")}


# ---------------------------------------------------------------------- the law


def test_a_subscription_is_held_at_the_beginning_that_the_fewest_documents_have() -> None:
    filters = filters_of("/rss/channel/item[author = 'A1']/title", "/book/title", "/rss/channel/title")
    view = sonnet.adapt(statistics_of(filters, feeds_and_books()), partitions=2)
    assert held_at(view, filters) == {
        0: token_group("=A1"),  # other authors have a bit in common with it
        1: prefix_group(("book", "title")),
        2: prefix_group(("rss", "channel", "title")),
    }


def test_a_subscription_that_may_begin_anywhere_is_held_at_its_rarest_token() -> None:
    filters = filters_of("//item//title", "//*[isbn][title]", "//*[isbn]/title")
    view = sonnet.adapt(statistics_of(filters, feeds_and_books(9)), partitions=2)
    assert held_at(view, filters) == {0: token_group("item"), 1: token_group("isbn"), 2: token_group("isbn")}
    assert view.largest_of_tokens == pytest.approx(2 / 3)
    assert "and 67% of those by token" in view.described()


@pytest.mark.parametrize(
    "text",
    [
        "lang = 'en'", "TRUE", "NOT xpath_boolean(body, '/rss')", "xpath_boolean(lower(body), '/rss')",
        "xpath_boolean(body, '/rss') OR lang = 'en'", "xpath_boolean(body, '/rss') OR xpath_boolean(body, '/book')",
        "xpath_boolean(body, '//*')", "xpath_boolean(body, '/unheard/of')",
    ],
)  # fmt: skip
def test_what_asks_for_no_group_that_is_known_is_held_everywhere(text: str) -> None:
    view = sonnet.adapt(statistics_of(filters_of("/rss", "/book"), feeds_and_books()), partitions=2)
    assert held_at(view, compile_filters([text], NEWS)) == {0: None}


def test_alternatives_that_share_a_path_are_held_at_its_group() -> None:
    filters = compile_filters(["xpath_boolean(body, '/book/isbn') AND (lang = 'en' OR lang IS NULL)"], NEWS)
    view = sonnet.adapt(statistics_of(filters, feeds_and_books()), partitions=2)
    assert held_at(view, filters) == {0: prefix_group(("book", "isbn"))}


def test_documents_that_are_alike_go_to_one_owner_and_not_to_others() -> None:
    paths = [f"/rss/channel/item[author = 'A{n}']" for n in range(9)] + [f"/book[isbn = 'A{n}']" for n in range(9)]
    filters, events = filters_of(*paths), feeds_and_books()
    view = sonnet.adapt(statistics_of(filters, events), partitions=2)
    visits = visits_of(events, view)
    assert len(visits) == events.count
    assert set(visits.partitions.tolist()) == {0, 1}


@pytest.mark.parametrize("name", list(XML_WORKLOADS))
def test_a_document_visits_three_of_eight_partitions_and_each_holds_a_part(name: str) -> None:
    try:
        workload = XML_WORKLOADS[name](queries=3_000, documents=300)
    except DataMissing as missing:
        pytest.skip(str(missing))
    filters = filters_of(*workload.queries)
    events = events_of(*(document.decode() for document in workload.documents))
    view = sonnet.adapt(statistics_of(filters, events.part(0, 150)), partitions=8)
    others = events.part(150, 300)
    visits = visits_of(others, view)
    assert len(visits) / others.count <= 3.05  # by 150 others, on average
    assert sorted(np.unique(visits.partitions)) == list(range(8))
    placed = place(filters, view)
    owners = view.owners(placed.keys)
    assert np.bincount(owners[owners != EVERYWHERE], minlength=8).max() <= 0.4 * filters.count


def test_a_class_is_held_by_several_partitions_and_a_document_goes_to_one_of_them() -> None:
    filters, events = filters_of("/rss/channel", "//title"), feeds_and_books(60)
    view = sonnet.adapt(statistics_of(filters, events), partitions=6, visits_max=1)
    assert (view.visits, sorted(one for of_class in view.holders for one in of_class)) == (1, list(range(6)))
    visits = visits_of(events, view)
    assert len(visits) == events.count
    assert len(np.unique(visits.partitions)) > 3
    assert np.array_equal(visits_of(events, view).partitions, visits.partitions)
    assert "in 1 classes" not in view.described()


def test_an_event_consults_a_shard_once_however_many_of_its_groups_lead_there() -> None:
    filters, events = filters_of("/book/title", "/book/isbn", "//title", "/rss"), feeds_and_books(8)
    view = sonnet.adapt(statistics_of(filters, events), partitions=1)
    assert len(route(events, view)) > 2 * events.count
    visits = visits_of(events, view)
    for start, end in zip(visits.offsets, visits.offsets[1:], strict=False):
        shards = visits.shards[start:end].tolist()
        assert len(set(shards)) == len(shards)


def test_what_is_no_document_visits_the_catch_all_alone() -> None:
    view = sonnet.adapt(statistics_of(filters_of("/rss", "//title"), feeds_and_books()), partitions=2)
    routed = route(events_of(None, "<rss>", "<!DOCTYPE a><rss/>"), view)
    assert routed.events.tolist() == [0, 1, 2]
    assert (view.owners(routed.keys) == EVERYWHERE).all()


def test_without_paths_over_xml_everything_is_everywhere_and_a_view_says_so() -> None:
    filters = compile_filters(["lang = 'en'"], NEWS)
    view = sonnet.adapt(statistics_of(filters, feeds_and_books()), partitions=3)
    assert (view.visits, view.paths, view.described()) == (0, (), "no path over XML")
    assert len(meet(filters, feeds_and_books(), view).pairs) == 40


def test_few_candidates_are_met_and_every_match_is_among_them() -> None:
    workload = dtd(queries=400, documents=60)
    filters = filters_of(*workload.queries)
    events = events_of(*(document.decode() for document in workload.documents))
    view = sonnet.adapt(statistics_of(filters, events), partitions=4)
    found = meet(filters, events, view)
    wanted = [
        (number, query)
        for number, document in enumerate(map(read_document, workload.documents))
        for query, path in enumerate(map(parse_path, workload.queries))
        if document.holds(path)
    ]
    assert found.pairs == wanted
    assert found.candidates < 0.1 * filters.count * events.count


def test_no_more_groups_are_kept_than_asked_for_and_rare_paths_use_a_shorter_prefix() -> None:
    filters = filters_of(*(f"/rss/channel/item[author = 'A{n}']" for n in range(9)))
    view = sonnet.adapt(statistics_of(filters, feeds_and_books()), partitions=2, groups_max=8)
    groups = set(held_at(view, filters).values())
    assert groups <= {prefix_group(("rss", "channel", "item", "author")), prefix_group(("rss", "channel", "item"))}


def test_a_view_is_written_and_read() -> None:
    view = sonnet.adapt(statistics_of(filters_of("/rss", "//isbn"), feeds_and_books()), partitions=2, epoch=3)
    again = view_from_dict(view_to_dict(view))
    assert isinstance(again, sonnet.View)
    assert (again.groups, again.epoch, again.described()) == (view.groups, 3, view.described())
    assert np.array_equal(again.rates, view.rates)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_every_match_is_found_by_ranks_and_by_hashes(ordering: Ordering) -> None:
    workload = dtd(queries=300, documents=40)
    filters = filters_of(*workload.queries)
    events = events_of(*(document.decode() for document in workload.documents))
    view = sonnet.adapt(statistics_of(filters, events), partitions=4, ordering=ordering)
    again = view_from_dict(view_to_dict(view))
    documents = [read_document(document) for document in workload.documents]
    wanted = [
        (number, query)
        for number, document in enumerate(documents)
        for query, path in enumerate(map(parse_path, workload.queries))
        if document.holds(path)
    ]
    assert meet(filters, events, again).pairs == wanted


def test_the_planner_divides_by_paths_what_does_not_fit_everywhere() -> None:
    paths = [f"/rss/channel/item[author = 'A{n % 9}'][title = '{n}']" for n in range(300)]
    paths += [f"/book[isbn = 'A{n % 9}'][title = '{n}']" for n in range(300)]
    statistics = statistics_of(filters_of(*paths), feeds_and_books())
    found = plan(statistics, Room(memory=200_000, partitions=4), subscription_bytes=500)
    assert found.placement == "sonnet"
    assert any("subscriptions under sonnet by " in line and "beginnings of paths" in line for line in found.lines())
    elsewhere = plan(statistics_of(compile_filters(["lang = 'en'"], NEWS)), Room(memory=0.1), subscription_bytes=500)
    assert not any("sonnet" in line for line in elsewhere.lines())
