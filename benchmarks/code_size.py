"""How large the code is: modules and lines of code by package, without comments, blank lines and docstrings.

python -m benchmarks.code_size [FOLDER]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "tidings"
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """The lines of a source text that have code on them.

    >>> code_lines('x = 1  # why\\n\\n# a comment\\ny = (\\n    2\\n)\\n')
    4
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(ast.parse(text)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    """Modules and code lines of each package or module right below a folder."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).parts[0]
        modules[name] += 1
        lines[name] += code_lines(path.read_text(encoding="utf-8"))
    return {name: (modules[name], lines[name]) for name in sorted(modules)}


def main(folder: Path = SOURCE) -> None:
    found = sizes(folder)
    for name, (modules, lines) in found.items():
        print(f"{name:14} {modules:4} modules {lines:7,} lines of code")
    modules, lines = (sum(size[part] for size in found.values()) for part in (0, 1))
    print(f"{'in all':14} {modules:4} modules {lines:7,} lines of code")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
