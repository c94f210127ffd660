"""The path of `xpath_boolean`, and the map of its prefixes: `map('atom', 'http://www.w3.org/2005/Atom')`.

In the tree a path has its namespaces in it, as Q{uri}name: it means the same wherever it goes, and filters
that name a namespace by different prefixes are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidings.errors import FilterError
from tidings.filter.tree import Expression, Literal
from tidings.model import types
from tidings.xml.path_parser import is_prefix, parse_path, with_uris

_EXAMPLE = "write map('atom', 'http://www.w3.org/2005/Atom')"


def prefixes_of(arguments: Sequence[Expression], column: int) -> dict[str, str]:
    """What each prefix stands for, from the arguments of a map: a prefix and a URI by turns."""
    for argument in arguments:
        if not isinstance(argument, Literal) or argument.type != types.STRING:
            at = getattr(argument, "at", 0) or column
            raise FilterError("a map of prefixes has string literals alone", column=at, hint=_EXAMPLE)
    texts = [str(argument.value) for argument in arguments if isinstance(argument, Literal)]
    places = [argument.at for argument in arguments if isinstance(argument, Literal)]
    if len(texts) % 2:
        raise FilterError("a map of prefixes has a URI for each", column=places[-1], hint=_EXAMPLE)
    prefixes: dict[str, str] = {}
    for prefix, at in zip(texts[::2], places[::2], strict=True):
        if not is_prefix(prefix):
            hint = "a default namespace is for documents; in a path, give it a prefix" if not prefix else _EXAMPLE
            raise FilterError(f"'{prefix[:60]}' is no prefix", column=at, hint=hint)
        if prefix in prefixes:
            raise FilterError(f"the prefix '{prefix}' is there twice", column=at)
        prefixes[prefix] = ""
    for uri, at in zip(texts[1::2], places[1::2], strict=True):
        if not uri or "{" in uri or "}" in uri:
            raise FilterError(f"'{uri[:60]}' is no namespace", column=at, hint="give the URI that documents have")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def read_path(path: Expression, prefixes: Mapping[str, str], column: int) -> Literal:
    """The path, checked, with its namespaces in it; NULL where it is NULL."""
    if not isinstance(path, Literal) or path.type not in (types.STRING, types.VOID):
        at = getattr(path, "at", 0) or column
        raise FilterError("the path of xpath_boolean is a string literal", column=at)
    if path.value is None:
        return path
    text = str(path.value)
    try:
        parse_path(text, prefixes)
    except FilterError as error:
        at = path.at + (error.column or 0)  # as long as nothing before it is written by an escape
        raise FilterError(error.reason, column=at, hint=error.hint) from None
    renamed = with_uris(text, prefixes)
    try:
        parse_path(renamed)  # as it is read from now on
    except FilterError as error:
        reason = f"with its namespaces written out, {error.reason}"
        raise FilterError(reason, column=path.at, hint="shorten the namespaces, or the path") from None
    # One that is not as it was written is no literal of the text: a plan for filters alike must not take it for one.
    return path if renamed == text and not prefixes else Literal(renamed, types.STRING)
