from __future__ import annotations

import pytest

from tidings.xml.namespaces import with_prefixes, with_uris
from tidings.xml.node_text import selected_nodes
from tidings.xml.path_parser import parse_path

MAP = {"p": "urn:p", "q": "urn:q"}


@pytest.mark.parametrize("path", ["/p:a/q:*[@p:b = 'p:c']", '//p:a[contains(., "q:")]', "/a[b]", "/child::p:a"])
def test_a_path_means_the_same_by_prefix_and_by_uri(path: str) -> None:
    assert parse_path(with_uris(path, MAP)) == parse_path(path, MAP)
    text, namespaces = with_prefixes(with_uris(path, MAP))
    assert parse_path(text, namespaces) == parse_path(path, MAP)
    assert "Q{" not in text


@pytest.mark.parametrize(
    ("path", "nodes"),
    [
        ("/a/b", ['<b i="1">x<c/></b>', "<b/>"]),
        ("//b/@i", ["1"]),
        ("/a//text()", ["x", "y"]),
        ("/a/Q{urn:p}d", ['<p:d xmlns:p="urn:p"/>']),
        ("a/b[c]", ['<b i="1">x<c/></b>']),
        ("/z", []),
    ],
)
def test_selected_nodes_are_written_as_they_stand(path: str, nodes: list[str]) -> None:
    document = '<a xmlns:p="urn:p"><b i="1">x<c/></b>y<b/><p:d/></a>'
    found = selected_nodes(document, path)
    assert [node.replace(' xmlns:p="urn:p"', "") for node in found] == [
        node.replace(' xmlns:p="urn:p"', "") for node in nodes
    ]
