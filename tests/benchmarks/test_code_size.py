"""The counter counts lines of code, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.code_size import SOURCE, code_lines, main, sizes

SOURCE_TEXT = '''"""A module's docstring,
of two lines."""

import os  # a comment beside code is code

# a comment alone is not


class Thing:
    """Its docstring."""

    text = """a string that is no docstring,
    of two lines"""

    def does(self) -> None:
        """Its docstring."""
        return os.sep.join(
            "a",
        )
'''


def test_comments_blank_lines_and_docstrings_are_no_code() -> None:
    assert code_lines(SOURCE_TEXT) == 8


def test_modules_and_lines_are_counted_by_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "one.py").write_text("x = 1\n")
    (tmp_path / "inner" / "two.py").write_text("# nothing\n")
    (tmp_path / "top.py").write_text("x = 1\ny = 2\n")
    assert sizes(tmp_path) == {"inner": (2, 1), "top.py": (1, 2)}
    main(tmp_path)
    assert capsys.readouterr().out.splitlines()[-1] == "in all            3 modules       3 lines of code"


def test_the_source_is_where_it_is_looked_for() -> None:
    assert sizes(SOURCE)["cli.py"][0] == 1
