from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.systems.sonnet.path_digest import (
    MAX_TOKENS,
    Digest,
    Ordering,
    admits,
    content_of,
    digest_of,
    forwards,
    from_bits,
    header_of,
    permutation_of,
    query_digest,
    rank_of,
    to_bits,
)
from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

VARIANTS: list[Ordering] = ["ranks", "hashes"]
tokens = st.lists(st.text("abc", min_size=1, max_size=2), max_size=12).map(tuple)


@pytest.mark.parametrize("length", range(1, 7))
def test_ranks_number_the_permutations_in_lexicographic_order(length: int) -> None:
    every = list(permutations(range(length)))
    assert [rank_of(permutation) for permutation in every] == list(range(len(every)))


def test_the_last_permutation_of_eight_tokens_fits_its_bits() -> None:
    last = tuple("hgfedcba")
    assert permutation_of(last) == (7, 6, 5, 4, 3, 2, 1, 0)
    assert from_bits(to_bits(digest_of(last))) == digest_of(last)


def test_equal_tokens_are_ordered_by_their_places() -> None:
    assert permutation_of(("b", "a", "b")) == (1, 0, 2)


@given(tokens, tokens, st.sampled_from(VARIANTS))
def test_a_prefix_of_a_path_starts_its_digest(first: tuple[str, ...], rest: tuple[str, ...], variant: Ordering) -> None:
    whole, prefix = digest_of((*first, *rest), variant), digest_of(first[:MAX_TOKENS], variant)
    assert prefix.starts(whole)
    assert not prefix.content & ~whole.content


@given(tokens, st.booleans(), st.integers(0, (1 << 19) - 1), st.sampled_from(VARIANTS))
def test_a_digest_is_128_bits_and_back(path: tuple[str, ...], truncated: bool, node: int, variant: Ordering) -> None:
    made = digest_of(path, variant)
    digest = Digest(made.content, made.order, truncated, node, variant)
    assert 0 <= to_bits(digest) < 1 << 128
    assert from_bits(to_bits(digest), variant) == digest


def test_the_fields_lie_where_the_layout_says() -> None:
    digest = Digest(content=1 << 47, order=(0, 1), truncated=True, node=5)
    assert to_bits(digest) == 1 << 127 | 1 << 79 | 1 << 24 | 2 << 20 | 5


@pytest.mark.parametrize(
    ("path", "length", "truncated"),
    [
        ("/a/b/c", 3, False),
        ("/a/b[. = 'x']", 3, False),
        ("/a//b", 1, True),
        ("/a/*/b", 1, True),
        ("//a", 0, True),
        ("/*", 0, False),
        ("/a[b = 'x']/c", 2, True),
        ("/a[not(b)]", 1, False),
        ("/a/b/c/d/e/f/g/h", 8, False),
        ("/a/b/c/d/e/f/g/h/i", 8, True),
        ("/a/b/c/d/e/f/g/h[. = 'x']", 8, True),
    ],
)
def test_a_query_keeps_the_tokens_before_the_first_wildcard(path: str, length: int, truncated: bool) -> None:
    digest = query_digest(parse_path(path))
    assert (digest.length, digest.truncated) == (length, truncated)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_no_document_that_satisfies_a_query_is_refused(seed: int, variant: Ordering) -> None:
    random = Random(seed)
    queries = [parse_path(make_path(random), NAMESPACES) for _ in range(80)]
    digests = [query_digest(query, variant=variant) for query in queries]
    satisfied = 0
    for _ in range(12):
        text = make_document(random)
        header, document = header_of(text, variant), read_document(text)
        for query, digest in zip(queries, digests, strict=True):
            if document.holds(query):
                satisfied += 1
                assert admits(header, digest), query
    assert satisfied > 30


def test_what_a_document_has_not_is_mostly_refused() -> None:
    header = header_of("<rss><channel><item><title>x</title></item></channel></rss>")
    assert admits(header, query_digest(parse_path("/rss/channel/item[title]")))
    assert not admits(header, query_digest(parse_path("/rss/item/channel")))
    for path in ("/rss/channel/item/t{}", "//t{}", "/rss[t{}]"):
        absent = [query_digest(parse_path(path.format(number))) for number in range(100)]
        assert sum(admits(header, digest) for digest in absent) < 30


def test_hashes_tell_paths_of_one_order_apart() -> None:
    header = {variant: header_of("<a><c><b/></c><b><d/></b></a>", variant) for variant in VARIANTS}
    other = parse_path("/a/c/d")  # in the order of /a/b/d, whose content has no c
    both = parse_path("/a/b")
    for variant in VARIANTS:
        assert not admits(header[variant], query_digest(other, variant=variant))
        assert admits(header[variant], query_digest(both, variant=variant))


def test_a_packet_goes_down_one_token_at_a_time_and_never_in_a_circle() -> None:
    header = header_of("<a><b><c>x</c></b></a>")
    nodes = [query_digest(parse_path(path)) for path in ("/a", "/a/b", "/a/b/c")]
    root = Digest(0, ())
    assert forwards(header, root, nodes[0])
    assert forwards(header, nodes[0], nodes[1])
    assert forwards(header, nodes[1], nodes[2])
    assert not forwards(header, nodes[0], nodes[2])
    assert not forwards(header, nodes[1], nodes[1])
    assert not forwards(header, nodes[1], nodes[0])


def test_content_is_a_bit_for_each_token() -> None:
    assert content_of([]) == 0
    assert content_of(["a"]).bit_count() == 1
    assert content_of(["a", "b"]) == content_of(["a"]) | content_of(["b"])
