"""XML documents and paths over them at random, with names and values in common, from any source of chance.

Documents have what the language can tell apart: namespaces, attributes, mixed text, comments, CDATA, numbers that
are written in odd ways.
"""

from __future__ import annotations

from random import Random

NAMESPACES = {"p": "urn:p"}

_TAGS = ("a", "b", "c", "a", "b", "p:a", "d")
_ATTRIBUTES = ("i", "j", "p:i")
_VALUES = ("1", "2", "x", "-3.5", " 7 ", "xy", "")
_CONTENTS = (
    "x", "xy", "1", "2", " 2.5 ", "-3", "é", " ", "<!--c-->", "<?pi x?>", "<![CDATA[x]]>", "10", ".5", "&amp;",
)  # fmt: skip
_LITERALS = ('"x"', '"1"', '"xy"', '""', '"2"', '" 2.5 "', "'é'", '"x1"', "1", "2", "2.5", "-3", "10", "0")
_SOUGHT = ('"x"', '"xy"', '"2"', '""', '"é"', '"1210"')
_COMPARISONS = ("=", "=", "!=", "<", "<=", ">", ">=")
_MAX_DEPTH = 6


def make_document(random: Random, depth: int = 0) -> str:
    """A document, or at a depth one of its elements."""
    tag = random.choice(_TAGS)
    chosen = random.sample(_ATTRIBUTES, random.choice((0, 0, 1, 2)))
    attributes = "".join(f' {name}="{random.choice(_VALUES)}"' for name in chosen)
    if depth == 0:
        attributes += "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items())
    children = random.choice((0, 1, 2, 3)) if depth < _MAX_DEPTH else 0
    content = "".join(
        make_document(random, depth + 1) if random.random() < 0.6 else random.choice(_CONTENTS) for _ in range(children)
    )
    return f"<{tag}{attributes}>{content}</{tag}>"


def make_path(random: Random) -> str:
    """A path in the language, with prefixes as `NAMESPACES` has them."""
    path = ""
    for _ in range(random.choice((1, 2, 3, 4))):
        path += random.choice(("/", "/", "//")) + _test(random)
        for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
            path += f"[{_predicate(random, 0)}]"
    return path + _end(random)


def _test(random: Random) -> str:
    return random.choice(("a", "b", "c", "a", "b", "*", "p:a", "p:*", "d"))


def _attribute(random: Random) -> str:
    return random.choice(("@i", "@j", "@*", "@p:i"))


def _end(random: Random) -> str:
    chance = random.random()
    return "/" + _attribute(random) if chance < 0.1 else random.choice(("/", "//")) + "text()" if chance < 0.2 else ""


def _relative(random: Random, level: int) -> str:
    chance = random.random()
    if chance < 0.2:
        return "."
    if chance < 0.4:
        return _attribute(random)
    path = random.choice(("", "", ".//"))
    steps = random.choice((1, 1, 2, 3))
    for step in range(steps):
        path += _test(random)
        if level < 2 and random.random() < 0.1:
            path += f"[{_predicate(random, level + 1)}]"
        if step < steps - 1:
            path += random.choice(("/", "//"))
    return path + _end(random)


def _predicate(random: Random, level: int) -> str:
    chance = random.random()
    if chance < 0.25 or level > 2:
        return _relative(random, level)
    if chance < 0.6:
        return f"{_relative(random, level)} {random.choice(_COMPARISONS)} {random.choice(_LITERALS)}"
    if chance < 0.65:
        return f"{random.choice(_LITERALS)} {random.choice(_COMPARISONS)} {_relative(random, level)}"
    if chance < 0.8:
        function = random.choice(("contains", "starts-with"))
        return f"{function}({_relative(random, level)}, {random.choice(_SOUGHT)})"
    if chance < 0.88:
        return f"not({_predicate(random, level + 1)})"
    joined = " and " if chance < 0.94 else " or "
    return f"({_predicate(random, level + 1)}{joined}{_predicate(random, level + 1)})"
