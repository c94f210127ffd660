"""A catalogue is opened by many, at the same time and by later versions, and what is none is refused."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from tidings.store.catalogue import Catalogue, CatalogueBusyError, CatalogueError
from tidings.store.formats import FormatError

from .subscribed import active, ids, new


def test_what_was_written_is_found_after_reopening(catalogue_place: str) -> None:
    with Catalogue(catalogue_place) as catalogue:
        catalogue.put_domain("ada", "flights", "", inferred=False)
        made = active(catalogue, new("cheap"), 4)
        revision = catalogue.revision()
    with Catalogue(catalogue_place) as catalogue:
        assert catalogue.get("ada", "cheap") == made
        assert catalogue.revision() == revision


def test_several_open_a_new_one_at_the_same_time(catalogue_place: str) -> None:
    together = threading.Barrier(4)

    def open_and_write(number: int) -> None:
        together.wait()
        with Catalogue(catalogue_place) as catalogue:
            catalogue.put_domain("ada", f"d{number}", "", inferred=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_and_write, range(4)))
    with Catalogue(catalogue_place) as catalogue:
        assert (catalogue.revision(), len(catalogue.domains("ada"))) == (4, 4)


def test_threads_that_write_at_the_same_time_lose_nothing_and_readers_miss_nothing(known: Catalogue) -> None:
    done = threading.Event()
    seen: dict[int, int] = {}

    def follow() -> None:
        revision, last = 0, False
        while not last:
            last = done.is_set()
            for row in known.changed_filters("ada", "flights", revision):
                seen[row.number] = row.revision
                revision = max(revision, row.revision)

    def write(thread: int) -> list[int]:
        return [active(known, new(f"{thread}-{number}"), number).filters[0].number for number in range(8)]

    with ThreadPoolExecutor(5) as pool:
        following = pool.submit(follow)
        numbers = [number for made in pool.map(write, range(4)) for number in made]
        done.set()
        following.result()
    assert sorted(seen) == sorted(numbers)
    assert seen == {row.number: row.revision for row in known.filters_of("ada", "flights")}
    assert known.revision() == 2 + 2 * len(numbers)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(CatalogueError, match=r"other is a database of something else"):
        Catalogue(path)
    path.write_bytes(b"a text, and no database" * 100)
    with pytest.raises(CatalogueError, match=r"other is damaged .* restore a copy"):
        Catalogue(path)


@pytest.mark.parametrize("number", [1, 99])
def test_a_catalogue_of_another_format_is_refused_and_left_as_it_is(catalogue_place: str, number: int) -> None:
    with Catalogue(catalogue_place) as before:
        before.put_domain("ada", "flights", "{}", inferred=False)
    in_postgresql = catalogue_place.startswith("postgresql:")
    url = (
        catalogue_place.replace("postgresql:", "postgresql+psycopg:")
        if in_postgresql
        else f"sqlite:///{catalogue_place}"
    )
    engine = sa.create_engine(url)
    with engine.begin() as first:
        first.execute(sa.text(f"UPDATE catalogue SET format = {number}"))
    with pytest.raises(FormatError, match=f"has format {number}, and this is Tidings with format 4; use the version"):
        Catalogue(catalogue_place)
    with engine.begin() as again:
        assert again.execute(sa.text("SELECT format FROM catalogue")).scalar_one() == number
    engine.dispose()


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "catalogue") as catalogue:
        catalogue.create_token("ada")
        for path in tmp_path.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path


def test_a_lock_that_is_held_too_long_is_named(tmp_path: Path) -> None:
    with Catalogue(tmp_path / "catalogue", busy_seconds=0.05) as catalogue:
        catalogue.put_domain("ada", "flights", "", inferred=False)
        holder = sqlite3.connect(tmp_path / "catalogue", isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogueBusyError, match="another process keeps it locked"):
            catalogue.create(new())
        with pytest.raises(CatalogueBusyError, match="another process keeps it locked"):
            catalogue.revision()
        holder.execute("ROLLBACK")
        holder.close()
        catalogue.create(new("cheap"))
        assert ids(catalogue) == ["cheap"]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nowhere/at/all", r"cannot open .*nowhere/at/all: No such file"),
        ("mysql://localhost/x", r"'mysql' is not supported"),
        ("postgresql://ada:hidden@127.0.0.1:1/x", r"cannot open postgresql.*ada:\*\*\*@127.0.0.1:1/x: .*is the server"),
    ],
)
def test_a_place_that_cannot_be_opened_is_named_without_its_password(tmp_path: Path, place: str, problem: str) -> None:
    with pytest.raises(CatalogueError, match=problem) as refused:
        Catalogue(place if "://" in place else os.fspath(tmp_path / place), busy_seconds=2)
    assert "hidden" not in str(refused.value)
