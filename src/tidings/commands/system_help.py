"""Help of the commands that run a published system, made from the systems' records when it is shown.

A command's texts name what follows from the records by a placeholder: reading the records takes a while, which no other
command should wait for.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

WIDTH = 28  # of the column of names


class SystemCommand(TyperCommand):
    """A command whose help has placeholders for the systems, their bugs and their abilities."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.help = _filled(self.help)
        for parameter in self.params:
            if hasattr(parameter, "help"):
                parameter.help = _filled(parameter.help)
        super().format_help(ctx, formatter)


def _filled(text: str | None) -> str:
    found = text or ""
    for placeholder, made in (
        ("%SYSTEMS%", _systems),
        ("%BUGS%", _bugs),
        ("%SETTINGS%", _settings),
        ("%NAMES%", _names),
        ("%LOG%", lambda: _able("log")),
        ("%QUEUE%", lambda: _able("queue")),
        ("%GROWTH%", lambda: _able("growth")),
        ("%PATH%", lambda: _able("path")),
    ):
        if placeholder in found:
            found = found.replace(placeholder, made())
    return found


def _systems() -> str:
    from tidings.systems.overlay import overlays

    return "\n".join(f"  {name:<{WIDTH}}{named.help}" for name, named in overlays().items())


def _bugs() -> str:
    from tidings.systems.overlay import overlays

    return "\n".join(f"  {name:<{WIDTH}}{', '.join(named.bugs)}" for name, named in overlays().items())


def _settings() -> str:
    """A line for each setting of each system: its default, what it is, what it can be, and its default if simulated."""
    from tidings.systems.overlay import overlays

    lines = []
    for named in overlays().values():
        shown = [] if named.variant else named.system.settings
        lines += [f"  {named.name}"] if shown else []
        for setting in shown:
            usual, simulated = (setting.written(named.settings(simulated=one)) for one in (False, True))
            here = f" (simulated: {simulated})" if simulated != usual else ""
            lines.append(f"    {f'{setting.name}={usual}':<{WIDTH - 2}}{setting.help}; {setting.values}{here}")
    return "\n".join(lines)


def _names() -> str:
    from tidings.systems.overlay import overlays

    return ", ".join(overlays())


def _able(ability: str) -> str:
    from tidings.systems.interface import systems

    return ", ".join(name for name, system in systems().items() if ability in system.abilities)
