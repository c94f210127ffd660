"""Headers of documents: they admit whatever their documents satisfy, by the kernel as by the law."""

from __future__ import annotations

from random import Random

import pytest

from tidings.systems.sonnet.document_header import Header, admits, header_of, query_table
from tidings.systems.sonnet.path_digest import Digest, Ordering, query_digest, to_bits
from tidings.systems.sonnet.paths import hangs_below
from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

VARIANTS: list[Ordering] = ["ranks", "hashes"]


def _goes_down(header: Header, node: Digest, child: Digest) -> bool:
    return hangs_below(node, child) and admits(header, child)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_no_document_that_satisfies_a_query_is_refused(seed: int, variant: Ordering) -> None:
    random = Random(seed)
    queries = [parse_path(make_path(random), NAMESPACES) for _ in range(80)]
    digests = [query_digest(query, variant=variant) for query in queries]
    satisfied = 0
    for _ in range(12):
        text = make_document(random)
        document = read_document(text)
        header = header_of(document, variant)
        for query, digest in zip(queries, digests, strict=True):
            if document.holds(query):
                satisfied += 1
                assert admits(header, digest), query
    assert satisfied > 30


def test_what_a_document_has_not_is_mostly_refused() -> None:
    header = header_of(read_document("<rss><channel><item><title>x</title></item></channel></rss>"))
    assert admits(header, query_digest(parse_path("/rss/channel/item[title]")))
    assert not admits(header, query_digest(parse_path("/rss/item/channel")))
    for path in ("/rss/channel/item/t{}", "//t{}", "/rss[t{}]"):
        absent = [query_digest(parse_path(path.format(number))) for number in range(100)]
        assert sum(admits(header, digest) for digest in absent) < 30


def test_hashes_tell_paths_of_one_order_apart() -> None:
    header = {variant: header_of(read_document("<a><c><b/></c><b><d/></b></a>"), variant) for variant in VARIANTS}
    other = parse_path("/a/c/d")  # in the order of /a/b/d, whose content has no c
    both = parse_path("/a/b")
    for variant in VARIANTS:
        assert not admits(header[variant], query_digest(other, variant=variant))
        assert admits(header[variant], query_digest(both, variant=variant))


def test_a_packet_goes_down_one_token_at_a_time_and_never_in_a_circle() -> None:
    header = header_of(read_document("<a><b><c>x</c></b></a>"))
    nodes = [query_digest(parse_path(path)) for path in ("/a", "/a/b", "/a/b/c")]
    root = Digest(0, ())
    assert _goes_down(header, root, nodes[0])
    assert _goes_down(header, nodes[0], nodes[1])
    assert _goes_down(header, nodes[1], nodes[2])
    assert not _goes_down(header, nodes[0], nodes[2])
    assert not _goes_down(header, nodes[1], nodes[1])
    assert not _goes_down(header, nodes[1], nodes[0])


def test_a_document_without_the_value_of_a_predicate_is_refused() -> None:
    header = header_of(read_document("<rss><item><author>T. Johnson</author><link/></item></rss>"))
    assert admits(header, query_digest(parse_path('/rss/item[author = "T. Johnson"]/link')))
    others = [query_digest(parse_path(f'/rss/item[author = "A{number}"]/link')) for number in range(100)]
    assert sum(admits(header, digest) for digest in others) < 30


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_admits_what_the_law_admits(seed: int, variant: Ordering) -> None:
    random = Random(seed)
    queries = [query_digest(parse_path(make_path(random), NAMESPACES), variant=variant) for _ in range(150)]
    table = query_table([to_bits(query) for query in queries], variant)
    admitted = 0
    for _ in range(20):
        header = header_of(read_document(make_document(random)), variant)
        wanted = [admits(header, query) for query in queries]
        assert table.admitted(header).tolist() == wanted
        admitted += sum(wanted)
    assert 0 < admitted < 20 * len(queries)


def test_a_table_of_no_queries_admits_none() -> None:
    assert query_table([], "ranks").admitted(header_of(read_document("<a/>"))).tolist() == []


def test_what_is_no_digest_is_refused() -> None:
    header = Header((9 << 20,), 0)  # of nine tokens
    with pytest.raises(ValueError, match="not the bits of a digest"):
        _ = header.columns
