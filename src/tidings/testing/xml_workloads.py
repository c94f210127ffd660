"""The workloads of path queries over XML that benchmarks name, each defined once, so that figures compare.

bibliography  real bibliographic records (`data.bibliography`), and queries made of their own paths and values
dtd           documents and queries from a random document type: deep paths that have little in common

Queries come from seed 1 and documents from seed 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidings.extras import LazyModule
from tidings.testing import real_data as data
from tidings.testing.workloads import EVENT_SEED, SUBSCRIPTION_SEED

etree: Any = LazyModule("lxml.etree")

_TAGS, _FAN_OUT, _DEPTHS, _PATHS = 120, 6, (5, 8), 5
_STEPS = (3, 7)
_TEXTS, _NUMBERS = 100, 1_000


@dataclass(frozen=True, eq=False)
class XmlWorkload:
    name: str
    queries: list[str]
    documents: list[bytes]


# ---------------------------------------------------------------------- bibliography


def bibliography(queries: int = 100_000, documents: int = 1_000) -> XmlWorkload:
    """20 % plain paths, 15 % `//`, 10 % with `*`, 10 % numeric, 25 % values, 15 % children's values, 5 % `contains`."""
    records = data.bibliography()
    rng, document_rng = np.random.default_rng(SUBSCRIPTION_SEED), np.random.default_rng(EVENT_SEED)
    trees = [etree.fromstring(record) for record in records]
    makers = (_plain, _anywhere, _starred, _numeric, _valued, _child_valued, _containing)
    kinds = rng.choice(len(makers), queries, p=[0.2, 0.15, 0.1, 0.1, 0.25, 0.15, 0.05])
    made: list[str] = []
    for kind in kinds.tolist():
        query = None
        while query is None:
            query = makers[kind](trees[int(rng.integers(len(trees)))], rng)
        made.append(query)
    chosen = document_rng.choice(len(records), documents, replace=documents > len(records))
    return XmlWorkload("bibliography", made, [records[number] for number in chosen.tolist()])


def _some(choices: list[Any], rng: np.random.Generator) -> Any:
    return choices[int(rng.integers(len(choices)))] if choices else None


def _tags_to(element: Any) -> list[str]:
    return [one.tag for one in (*reversed(list(element.iterancestors())), element)]


def _path(tags: list[str]) -> str:
    return "".join(f"/{tag}" for tag in tags)


def _plain(record: Any, rng: np.random.Generator) -> str | None:
    return _path(_tags_to(_some(list(record.iter()), rng)))


def _anywhere(record: Any, rng: np.random.Generator) -> str | None:
    return f"//{_some(list(record.iter()), rng).tag}"


def _starred(record: Any, rng: np.random.Generator) -> str | None:
    tags = _tags_to(_some(list(record.iter()), rng))
    if len(tags) < 2:
        return None
    tags[int(rng.integers(len(tags)))] = "*"
    return _path(tags)


def _numeric(record: Any, rng: np.random.Generator) -> str | None:
    child = _some([one for one in record if _is_whole(one.text)], rng)
    other = _some(list(record), rng)
    if child is None:
        return None
    op = _some(["<", "<=", ">", ">="], rng)
    return f"/{record.tag}[{child.tag} {op} {int(child.text)}]/{other.tag}"


def _is_whole(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit()


def _valued(record: Any, rng: np.random.Generator) -> str | None:
    element = _some([one for one in record.iter() if not len(one) and one.text], rng)
    literal = None if element is None else _quoted(element.text)
    return None if literal is None else f"{_path(_tags_to(element))}[. = {literal}]"


def _child_valued(record: Any, rng: np.random.Generator) -> str | None:
    element = _some([one for one in record.iter() if not len(one) and one.text and one is not record], rng)
    literal = None if element is None else _quoted(element.text)
    return None if literal is None else f"{_path(_tags_to(element.getparent()))}[{element.tag} = {literal}]"


def _containing(record: Any, rng: np.random.Generator) -> str | None:
    element = _some([one for one in record.iter() if not len(one) and one.text], rng)
    word = None if element is None else _some(element.text.split(), rng)
    literal = None if word is None else _quoted(word)
    return None if literal is None else f"{_path(_tags_to(element))}[contains(., {literal})]"


def _quoted(text: str) -> str | None:
    return f'"{text}"' if '"' not in text else f"'{text}'" if "'" not in text else None


# ---------------------------------------------------------------------- dtd


def dtd(queries: int = 100_000, documents: int = 1_000) -> XmlWorkload:
    """120 tags with 6 others in each; queries of 3 to 7 steps, 10 % with `//`, 10 % with `*`, 20 % with a predicate."""
    rng, document_rng = np.random.default_rng(SUBSCRIPTION_SEED), np.random.default_rng(EVENT_SEED)
    children = rng.integers(1, _TAGS, (_TAGS, _FAN_OUT)).tolist()
    made = [_dtd_query(children, rng) for _ in range(queries)]
    return XmlWorkload("dtd", made, [_dtd_document(children, document_rng) for _ in range(documents)])


def _walk(children: list[list[int]], length: int, rng: np.random.Generator) -> list[int]:
    tags = [0]
    for choice in rng.integers(_FAN_OUT, size=length - 1).tolist():
        tags.append(children[tags[-1]][choice])
    return tags


def _dtd_query(children: list[list[int]], rng: np.random.Generator) -> str:
    tags = _walk(children, int(rng.integers(_STEPS[0], _STEPS[1] + 1)), rng)
    steps = [f"/t{tag}" for tag in tags]
    kinds = rng.random(3)
    if kinds[0] < 0.1:
        at = int(rng.integers(1, len(steps)))
        steps[at] = "/" + steps[at]
    if kinds[1] < 0.1:
        steps[int(rng.integers(1, len(steps)))] = "/*"
    if kinds[2] < 0.2:
        at = int(rng.integers(1, len(steps)))
        op = _some(["=", "<", ">="], rng)
        steps[at] += f"[@n {op} {int(rng.integers(_NUMBERS))}]" if rng.random() < 0.5 else f'[. = "v{_text(rng)}"]'
    return "".join(steps)


def _text(rng: np.random.Generator) -> int:
    return int(rng.integers(_TEXTS))


def _dtd_document(children: list[list[int]], rng: np.random.Generator) -> bytes:
    """A tree of five walks from the root; what they have in common at their beginning is there once."""
    root = etree.Element("t0", n=str(int(rng.integers(_NUMBERS))))
    for _ in range(_PATHS):
        element = root
        for tag in _walk(children, int(rng.integers(_DEPTHS[0], _DEPTHS[1] + 1)), rng)[1:]:
            found = element.find(f"t{tag}")
            element = (
                etree.SubElement(element, f"t{tag}", n=str(int(rng.integers(_NUMBERS)))) if found is None else found
            )
        element.text = f"v{_text(rng)}"
    return bytes(etree.tostring(root))


XML_WORKLOADS: dict[str, Callable[..., XmlWorkload]] = {"bibliography": bibliography, "dtd": dtd}
