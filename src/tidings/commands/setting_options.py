"""The settings of a system as options: `--set name=value`, and a file in TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.systems.system_settings import Given, SettingError

Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the system: one of those named above. Repeatable."),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="Settings in TOML: names and values, or a table for each system."),
]


def read_settings(pairs: Iterable[str] | None, file: Path | None, system: str) -> Given:
    """Returns the settings for a system: those of the file, and over them those given one by one."""
    found = {} if file is None else _from_file(file, system)
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(f"--set {pair}: write a setting as name=value")
        found[name.strip()] = value.strip()
    return tuple(found.items())


def _from_file(file: Path, system: str) -> dict[str, str]:
    """The settings at the top of the file, and those in the system's own table; other systems' tables are left out."""
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{file}: no settings in TOML: {error}") from None
    own = table.get(system, {})
    if not isinstance(own, Mapping):
        raise SettingError(f"{file}: {system} is the name of a system; write its settings as a table, [{system}]")
    top = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
    return {name: _text(file, name, value) for name, value in {**top, **own}.items()}


def _text(file: Path, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, str | int | float):
        raise SettingError(f"{file}: setting '{name}' is a text, a number, true or false")
    return str(value)
