"""The settings of a system: the parameters that its paper has, as users name and write them.

The `SYSTEM` record lists them. Each names a field of the settings that nodes are made with, where its default is; dots
lead into the settings of the layers below (`scribe.pastry.leaves`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

from tidings.errors import TidingsError, did_you_mean

Given = tuple[tuple[str, str], ...]  # settings by name, with their values as text

SettingType = Literal["integer", "number", "switch", "choice", "node"]
SWITCH = {"on": True, "off": False, "true": True, "false": False}


class SettingError(TidingsError):
    """Unknown name of a setting, or a value that it cannot have."""


@dataclass(frozen=True)
class Setting:
    """One parameter of a system."""

    name: str  # the paper's, if it has one
    type: SettingType
    field: str  # of the nodes' settings
    help: str  # in one line
    choices: tuple[str, ...] = ()
    least: float = 0
    shared: bool = False  # whether nodes with different values could not work together

    def read(self, text: str, node_id: Callable[[str], int]) -> Any:
        """Returns the value that a text stands for; `node_id` returns the id of a node that is named."""
        match self.type:
            case "switch" if text.lower() in SWITCH:
                return SWITCH[text.lower()]
            case "choice" if text.replace("-", " ") in self.choices:
                return text.replace("-", " ")
            case "node":
                return None if text == "none" else node_id(text)
            case "integer" | "number":
                return self._number(text)
        raise self._refused(text)

    def _number(self, text: str) -> float:
        try:
            value: float = int(text) if self.type == "integer" else float(text)
        except ValueError:
            raise self._refused(text) from None
        if not isfinite(value) or value < self.least:
            raise self._refused(text)
        return value

    def _refused(self, text: str) -> SettingError:
        return SettingError(f"setting '{self.name}' cannot be '{text}'; it is {self.values}")

    @property
    def values(self) -> str:
        """What it can be, in words."""
        match self.type:
            case "switch":
                return "on or off"
            case "choice":
                return "one of " + ", ".join(self.choices)
            case "node":
                return "a node, or none"
        kind = "a whole number" if self.type == "integer" else "a number"
        return f"{kind}, {self.least:g} or more" if isfinite(self.least) else kind

    def of(self, settings: Any) -> Any:
        """Returns its value in the settings of a node."""
        for name in self.field.split("."):
            settings = getattr(settings, name)
        return settings

    def written(self, settings: Any) -> str:
        """Returns its value in the settings of a node as users write it."""
        value = self.of(settings)
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value).removesuffix(".0")


def setting_named(settings: Iterable[Setting], name: str, system: str) -> Setting:
    """Returns the setting of this name; raises SettingError with the known ones if there is none."""
    known = {setting.name: setting for setting in settings}
    if name not in known:
        there = f"its settings are {', '.join(known)}" if known else "it has none"
        hint = f"{did_you_mean(name, known)} " if "did you mean" in did_you_mean(name, known) else ""
        raise SettingError(f"{system} has no setting '{name}'; {hint}{there}")
    return known[name]


def changed(settings: Any, fields: Mapping[str, Any]) -> Any:
    """Returns settings of a node with other values in some fields, each named by its way from the top."""
    for field, value in fields.items():
        name, _, below = field.partition(".")
        made = {name: changed(getattr(settings, name), {below: value}) if below else value}
        settings = settings._replace(**made) if hasattr(settings, "_replace") else replace(settings, **made)
    return settings


def no_node(text: str) -> int:
    """Refuses to name a node: for settings that are checked before there are nodes."""
    raise SettingError(f"'{text}' names no node here")
