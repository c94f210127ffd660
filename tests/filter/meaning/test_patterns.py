"""Patterns: both ways of running LIKE are the same, and sizes bound what RE2 makes of a pattern."""

from __future__ import annotations

import random

import pytest

from tidings.filter.meaning.patterns import (
    MAX_SHORT_LENGTH,
    MAX_SHORT_SIZE,
    check_rlike,
    compile_like,
    compile_re2,
    is_short_rlike,
    like_size,
    like_to_re2,
    rlike_size,
)


def _texts(seed: int) -> list[tuple[str, str]]:
    chosen = random.Random(seed)
    pairs = []
    for _ in range(2_000):
        pattern = "".join(chosen.choices("ab%%_é.", [4, 2, 3, 3, 1, 1, 1], k=chosen.randrange(8)))
        pairs.append((pattern, "".join(chosen.choices("abé.\n", k=chosen.randrange(8)))))
    return pairs


def test_like_says_the_same_as_its_regular_expression() -> None:
    for pattern, text in _texts(1):
        assert bool(compile_like(pattern).search(text)) == bool(compile_re2(like_to_re2(pattern)).search(text)), (
            pattern,
            text,
        )


@pytest.mark.parametrize(
    ("pattern", "escape", "matching", "other"),
    [
        ("10!%%", "!", "10% off", "10 off"), ("!!%!%", "!", "! x%", "x%"), ("a\\_%", "\\", "a_b", "ab"),
        ("%%a%%%_b", "%", "%a%_b", "%a_b"), ("%", "\\", "", None), ("", "\\", "", "a"), ("a%a", "\\", "aa", "a"),
        ("%ab%ba%", "\\", "abba", "aba"), ("ab%ba", "\\", "abba", "aba"), ("%a%a%", "\\", "aa", "a"),
    ],
)  # fmt: skip
def test_pieces_are_found_in_order_without_overlap(pattern: str, escape: str, matching: str, other: str | None) -> None:
    assert compile_like(pattern, escape).search(matching)
    assert other is None or not compile_like(pattern, escape).search(other)


def test_a_pattern_of_many_wildcards_takes_time_in_proportion_to_the_text() -> None:
    # By an automaton each of these takes minutes.
    text = "ab" * 500_000
    assert compile_like("%a" * 4_500 + "%").search(text)
    assert not compile_like("%a" * 4_500 + "%c").search(text)
    assert not compile_like("%" + "." * 9_000 + "%a").search("." * 1_000_000)


def test_the_size_of_a_like_pattern_is_at_least_that_of_its_program() -> None:
    for pattern, _ in _texts(2):
        if "_" in pattern:
            assert like_size(pattern) + 8 >= rlike_size(like_to_re2(pattern)), pattern


@pytest.mark.parametrize("atom", [".", ".*", "(.)", "(.)+", r"\W", r"\D*", "[^a]", "[^a-z]?", "漢", "a", "(a|.)", "|."])
def test_plain_short_patterns_are_as_small_as_they_are_taken_for(atom: str) -> None:
    pattern = atom * (MAX_SHORT_LENGTH // len(atom))
    check_rlike(pattern)
    assert rlike_size(pattern) <= MAX_SHORT_SIZE
    assert is_short_rlike(pattern)


def test_groups_count_since_arrow_keeps_them() -> None:
    assert rlike_size("((((a)))){100}") > 4 * rlike_size("a{100}")
    with pytest.raises(ValueError, match="too large"):
        check_rlike("(" * 200 + "a" + ")" * 200 + "{1000}")
