"""A data directory of another format, or of something else, is refused by name and left as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidings.service.data.data_directory import FORMATS, DataDirectory
from tidings.service.supervisor import ServicePlan, prepared
from tidings.store.formats import FormatError


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path / "data")
    with prepared(ServicePlan(made)):
        pass
    return made


def change(data: DataDirectory, **changes: Any) -> None:
    path = data.path / "format.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_new_directory_says_which_formats_it_has_and_what_made_it(data: DataDirectory) -> None:
    form = json.loads((data.path / "format.json").read_text())
    assert form.pop("made_by").startswith("tidings ")
    assert form == FORMATS
    with prepared(ServicePlan(data)) as new:
        assert not new


@pytest.mark.parametrize("what", FORMATS)
@pytest.mark.parametrize("number", [0, 99, None])
def test_a_directory_with_another_number_is_refused_before_anything_is_opened(
    data: DataDirectory, what: str, number: int | None
) -> None:
    change(data, **{what: number, "made_by": "tidings 7.8.9"})
    before = files_of(data.path)
    with pytest.raises(FormatError, match=rf"{what} {number} and not {FORMATS[what]}.* start it with tidings 7.8.9"):
        data.make()
    with pytest.raises(FormatError, match="left as it is"), prepared(ServicePlan(data)):
        pass
    assert files_of(data.path) == before


@pytest.mark.parametrize("text", ["", "[]", "{", '"one"'])
def test_a_format_file_that_cannot_be_read_is_refused(data: DataDirectory, text: str) -> None:
    (data.path / "format.json").write_text(text)
    with pytest.raises(FormatError, match=r"format.json|another format"):
        data.make()


def test_a_directory_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("\\begin{document}")
    with pytest.raises(FormatError, match=r"has files and no format.json \(thesis.tex\): it is of something else"):
        DataDirectory(tmp_path).make()
    assert list(files_of(tmp_path)) == ["thesis.tex"]


def test_an_empty_directory_is_taken_even_at_the_root_of_a_file_system(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    DataDirectory(tmp_path).make()
    assert (tmp_path / "format.json").exists()
