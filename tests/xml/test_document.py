from __future__ import annotations

import pytest

from tidings.errors import EventError
from tidings.xml.document import MAX_BYTES, Nodes, check_document, parse_document
from tidings.xml.path_meaning import read_document
from tidings.xml.path_parser import parse_path

_LAUGHS = '<!DOCTYPE a [<!ENTITY l "ha"><!ENTITY m "&l;&l;&l;">]><a>&m;</a>'


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("<!DOCTYPE a><a/>", "document type"),
        ('<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd"><a/>', "document type"),
        ("<?xml version='1.0'?><!-- hello --> <?pi x?>" + _LAUGHS, "document type"),
        (_LAUGHS.encode("utf-16"), "document type"),
        ("<?xml version='1.0' encoding='utf-32'?><!DOCTYPE a><a/>".encode("utf-32"), "document type"),
        ("<a>&hello;</a>", "not defined"),
        ('<a b="&hello;"/>', "not defined"),
        ('<x:include xmlns:x="http://www.w3.org/2001/XInclude" href="/etc/passwd"/>', "XInclude"),
        ("<a>" * 257 + "</a>" * 257, "256 elements deep"),
        ("<a>" * 5000 + "</a>" * 5000, "256 elements deep"),
        ("<a " + " ".join(f'a{i}="1"' for i in range(1001)) + "/>", "1,001 attributes"),
        ("<a>" + "x" * MAX_BYTES + "</a>", "bytes"),
        ("<a>", "not well-formed"),
        ("<a/><b/>", "not well-formed"),
        ("<p:a/>", "not well-formed"),
        ("<a b='1' b='2'/>", "not well-formed"),
        ("", "not well-formed"),
        ("hello", "not well-formed"),
        (b"<a>\xff</a>", "not well-formed"),
        (b"<?xml version='1.0' encoding='no-such'?><a/>", "no-such"),
        ("<a>\ud800</a>", "not valid Unicode"),
        ("<a>\0</a>", "not well-formed"),
    ],
)  # fmt: skip
def test_what_a_document_must_not_have_is_refused_with_a_reason(document: str | bytes, says: str) -> None:
    with pytest.raises(EventError, match=says):
        read_document(document)
    with pytest.raises(EventError, match=says):
        check_document(document)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("<a>" * 256 + "x" + "</a>" * 256, "x"),
        ("<a><![CDATA[<!DOCTYPE b>]]>x<!-- <!DOCTYPE c> --></a>", "<!DOCTYPE b>x"),
        ("<a>&lt;&amp;&#233;</a>", "<&é"),
        ("<?xml version='1.0' encoding='latin-1'?><a>é</a>", "é"),  # a text is a text, whatever it says
        ("<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>".encode("latin-1"), "é"),
        ("\ufeff<a>é</a>".encode(), "é"),
        ("<?xml version='1.0' encoding='utf-16'?><a>é</a>".encode("utf-16"), "é"),
        ("<a>x<b i='y'>z</b><!--c--><?pi d?>u</a>", "xzu"),
    ],
)
def test_what_it_may_have_is_read(document: str | bytes, text: str) -> None:
    assert read_document(document).string(0) == text
    assert check_document(document).tag == parse_document(document).tag


def test_a_document_that_is_refused_leaves_no_nodes_behind() -> None:
    nodes = Nodes()
    nodes.add(parse_document("<a>x<b/></a>"))
    before = (list(nodes.names), list(nodes.ends), list(nodes.text), nodes.size)
    with pytest.raises(EventError):
        nodes.add(parse_document("<a>y<b>" + "<a>" * 256 + "</a>" * 256 + "</b></a>"))
    assert (nodes.names, nodes.ends, nodes.text, nodes.size) == before


@pytest.mark.parametrize(
    ("path", "steps"), [("/a/b/c", 3), ("/a/b/d", 2), ("/a[x]/b", 0), ("/a/b[c = 'no']/c", 1), ("//c", 1)]
)
def test_how_far_a_path_leads_is_told(path: str, steps: int) -> None:
    assert read_document("<a><b><c>yes</c></b></a>").reached(parse_path(path)) == steps
