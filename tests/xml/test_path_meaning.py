"""The nodes that a path selects, judged by lxml."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from lxml import etree

from tidings.errors import EventError
from tidings.testing.random_data import NAMESPACES, make_document, make_path
from tidings.xml.path_meaning import selected_nodes
from tidings.xml.path_parser import with_uris


def judged(text: str, path: str) -> list[str]:
    found: Any = etree.fromstring(text.encode()).getroottree().xpath(path, namespaces=NAMESPACES)
    return [
        etree.tostring(node, encoding="unicode", with_tail=False) if isinstance(node, etree._Element) else str(node)
        for node in found
    ]


@pytest.mark.parametrize("seed", range(4))
def test_nodes_are_those_that_lxml_selects_in_the_documents_order(seed: int) -> None:
    random = Random(seed)
    paths = [make_path(random) for _ in range(120)]
    selected = 0
    for text in (make_document(random) for _ in range(25)):
        for path in paths:
            nodes = selected_nodes(text, with_uris(path, NAMESPACES))
            selected += len(nodes)
            assert nodes == judged(text, path), (text, path)
    assert selected > 100


def test_elements_come_as_xml_attributes_and_texts_as_they_are() -> None:
    text = '<a xmlns:p="urn:p"><p:b i="&lt;1">x<c/>y &amp; z</p:b>tail</a>'
    assert selected_nodes(text, "/a/Q{urn:p}b") == ['<p:b xmlns:p="urn:p" i="&lt;1">x<c/>y &amp; z</p:b>']
    assert selected_nodes(text, "//@i") == ["<1"]
    assert selected_nodes(text, "//text()") == ["x", "y & z", "tail"]


def test_where_lxml_and_xpath_differ_nodes_are_xpaths() -> None:
    assert selected_nodes("<a><n>1e2</n><n>5</n></a>", "/a/n[. > 1]") == ["<n>5</n>"]


def test_of_what_is_no_document_nothing_can_be_selected() -> None:
    with pytest.raises(EventError):
        selected_nodes("<a>", "/a")
