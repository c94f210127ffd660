"""Every parameter of a paper is a setting that reaches the nodes; what cannot be is refused with what can."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.systems.overlay import overlay_named, overlays
from tidings.systems.system_settings import Setting, SettingError

SETTINGS = [
    pytest.param(system, setting, id=f"{system}-{setting.name}")
    for system, named in overlays().items()
    if not named.variant
    for setting in named.system.settings
]
KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (float, int), "switch": (bool,), "choice": (str,), "node": (int, type(None)),
}  # fmt: skip


def other(setting: Setting, value: Any) -> str:
    """Another value of a setting, as text."""
    match setting.type:
        case "switch":
            return "off" if value else "on"
        case "choice":
            return next(choice for choice in setting.choices if choice != value)
        case "node":
            return "7"
    return str(value + 1).removesuffix(".0")


@pytest.mark.parametrize(("system", "setting"), SETTINGS)
def test_a_setting_changes_the_field_that_it_names_and_no_other(system: str, setting: Setting) -> None:
    named = overlay_named(system)
    usual = named.settings()
    assert isinstance(setting.of(usual), KINDS[setting.type])
    text = other(setting, setting.of(usual))
    given = named.with_settings(((setting.name, text),)).settings(node_id=int)
    assert setting.written(given) == text
    changed = [one.name for one in named.system.settings if one.of(given) != one.of(usual)]
    assert changed == [setting.name]


@pytest.mark.parametrize(("system", "setting"), SETTINGS)
def test_the_default_of_a_setting_is_a_value_that_it_can_have(system: str, setting: Setting) -> None:
    for simulated in (False, True):
        settings = overlay_named(system).settings(simulated=simulated)
        assert setting.read(setting.written(settings), int) == setting.of(settings)


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("chord", {"successors"}),
        ("opchord", {"successors", "jump"}),
        ("digests", {"matching"}),
        ("clusters", {"K", "gammaI", "gammaR", "c", "coordinator", "mode"}),
        ("sonnet", {"theta", "capacity", "digest", "log"}),
        ("bluedove", {"policy", "role", "service_ms", "service_ms_each", "log"}),
    ],
)
def test_every_parameter_of_a_paper_is_a_setting(system: str, names: set[str]) -> None:
    assert names <= {setting.name for setting in overlay_named(system).system.settings}


def test_a_setting_that_makes_a_variant_is_that_variant() -> None:
    assert overlay_named("digests").with_settings((("matching", "home"),)).name == "digests-home"
    assert overlay_named("digests-home").with_settings((("matching", "leaf"),)).name == "digests"
    assert overlay_named("digests-home").with_settings((("leaves", "4"),)).name == "digests-home"
    assert overlay_named("sonnet").with_settings((("digest", "hashes"),)).name == "sonnet-hashes"


@pytest.mark.parametrize(
    ("system", "name", "value", "complaint"),
    [
        ("bluedove", "polcy", "random", "did you mean 'policy'? its settings are policy, role"),
        ("bluedove", "theta", "2", "bluedove has no setting 'theta'; its settings are policy, role"),
        ("bluedove", "policy", "best", "one of adaptive, response time, subscriptions, random"),
        ("bluedove", "service_ms", "-1", "a number, 0 or more"),
        ("bluedove", "service_ms", "nan", "a number, 0 or more"),
        ("bluedove", "log", "maybe", "on or off"),
        ("clusters", "K", "2.5", "a whole number, 1 or more"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_can(system: str, name: str, value: str, complaint: str) -> None:
    with pytest.raises(SettingError) as refused:
        overlay_named(system).with_settings(((name, value),))
    assert complaint in str(refused.value)


def test_a_choice_of_two_words_is_written_with_a_hyphen_too() -> None:
    named = overlay_named("bluedove").with_settings((("policy", "response-time"),))
    assert named.settings().policy == "response time"
