from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.systems.sonnet.path_digest import (
    MAX_TOKENS,
    Digest,
    Ordering,
    content_of,
    digest_of,
    from_bits,
    permutation_of,
    query_digest,
    rank_of,
    to_bits,
)
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
        ("/a[. = 'x']/c", 2, True),
        ("/a/b[a]", 2, False),
        ("/a[not(b)]", 1, False),
        ("/a/b/c/d/e/f/g/h", 8, False),
        ("/a/b/c/d/e/f/g/h/i", 8, True),
        ("/a/b/c/d/e/f/g/h[. = 'x']", 8, True),
    ],
)
def test_a_query_keeps_the_tokens_before_the_first_wildcard(path: str, length: int, truncated: bool) -> None:
    digest = query_digest(parse_path(path))
    assert (digest.length, digest.truncated) == (length, truncated)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('/rss/item[description/author = "T. Johnson"]/link', '/rss/item[description/author = "A. Zhou"]/link'),
        ('//author[. = "T. Johnson"]', '//author[. = "A. Zhou"]'),
        ('/a[. = "x"]/b', '/a[. = "y"]/b'),
        ('/a[text() = "x"]/b', '/a[text() = "y"]/b'),
    ],
)
def test_queries_that_differ_in_the_value_of_a_predicate_have_different_digests(one: str, other: str) -> None:
    assert query_digest(parse_path(one)) != query_digest(parse_path(other))


def test_content_is_a_bit_for_each_token() -> None:
    assert content_of([]) == 0
    assert content_of(["a"]).bit_count() == 1
    assert content_of(["a", "b"]) == content_of(["a"]) | content_of(["b"])
