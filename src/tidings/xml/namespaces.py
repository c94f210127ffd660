"""Names with their namespaces, in the texts of paths: by prefix, as people write them, or by URI, as they are kept.

`Q{uri}name` means the same wherever it stands (XPath 3.1 writes it so); a prefix needs a map. lxml knows prefixes
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidings.xml.path_parser import TOKEN


def with_uris(text: str, namespaces: Mapping[str, str]) -> str:
    """A path with Q{uri}name for every prefix:name whose prefix is in the map."""

    def renamed(name: str) -> str:
        prefix, colon, local = name.rpartition(":")
        return f"Q{{{namespaces[prefix]}}}{local}" if colon and prefix in namespaces else name

    return _renamed(text, renamed)


def with_prefixes(text: str) -> tuple[str, dict[str, str]]:
    """A path with a prefix for every Q{uri}name, and the map that says which."""
    prefixes: dict[str, str] = {}

    def renamed(name: str) -> str:
        uri, _, local = name[2:].rpartition("}")
        return f"{prefixes.setdefault(uri, f'ns{len(prefixes)}')}:{local}" if uri else local

    path = _renamed(text, lambda name: renamed(name) if name.startswith("Q{") else name)
    return path, {prefix: uri for uri, prefix in prefixes.items()}


def _renamed(text: str, rename: Callable[[str], str]) -> str:
    if ":" not in text and "{" not in text:
        return text
    parts, end = [], 0
    for found in TOKEN.finditer(text):
        if found.lastgroup == "name":
            parts += [text[end : found.start("name")], rename(found.group("name"))]
            end = found.end()
    return "".join([*parts, text[end:]])
