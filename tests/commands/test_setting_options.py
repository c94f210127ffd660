"""Settings as `--set` and as a file reach the nodes of a simulation and of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tidings.cli import app
from tidings.commands.setting_options import read_settings
from tidings.simulator.run import Run
from tidings.simulator.scenario import Scenario, plan_from
from tidings.systems.overlay import overlays
from tidings.systems.system_settings import SettingError

SMALL = ["--nodes", "5", "--subscriptions", "3", "--events", "2", "--churn", "0", "--repair-ms", "0"]


def tidings(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("command", ["simulate", "node"])
def test_the_help_lists_every_setting_with_its_default(command: str) -> None:
    shown = tidings(command, "--help").output.split()
    for named in overlays().values():
        settings = named.settings()
        missing = [s.name for s in named.system.settings if f"{s.name}={s.written(settings)}".split()[0] not in shown]
        assert named.variant or not missing


def test_a_file_gives_settings_and_those_given_one_by_one_count_more(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('log = false\n[bluedove]\npolicy = "random"\nphi = 5\n[sonnet]\ntheta = 4.5\n')
    assert read_settings(["phi=7", "role = both"], file, "bluedove") == (
        ("log", "off"), ("policy", "random"), ("phi", "7"), ("role", "both")
    )  # fmt: skip
    assert read_settings(None, file, "sonnet") == (("log", "off"), ("theta", "4.5"))


@pytest.mark.parametrize("text", ["K =", "K = [1]", "clusters = 3"])
def test_a_file_that_has_no_settings_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=r"settings\.toml"):
        read_settings(None, file, "clusters")


def test_a_simulation_takes_settings_and_its_command_says_them() -> None:
    plan = Scenario("bluedove", settings=(("policy", "response time"), ("service_ms", "20")))
    assert plan_from(plan.arguments) == plan
    assert plan.command == "tidings simulate bluedove --set 'policy=response time' --set service_ms=20"
    run = Run(plan)
    run._start()
    assert {node.options.policy for node in run.world.nodes.values()} == {"response time"}  # type: ignore[attr-defined]
    assert tidings("simulate", "bluedove", "--set", "policy=random", *SMALL).exit_code == 0


def test_as_many_nodes_stay_as_the_successors_that_they_know_need() -> None:
    told = tidings("simulate", "chord", "--set", "successors=5", "--seeds", "4")
    assert told.exit_code == 0, told.output


def test_a_simulation_names_nodes_by_their_numbers() -> None:
    run = Run(Scenario("clusters", settings=(("coordinator", "2"),)))
    assert run._settings.coordinator == run._id_of[2]
    with pytest.raises(SettingError, match="numbered 0 to 7"):
        Run(Scenario("clusters", settings=(("coordinator", "8"),)))


@pytest.mark.parametrize(
    "arguments", [["simulate", "clusters"], ["node", "--system", "clusters", "--domain", "x.toml"]]
)
def test_an_unknown_setting_is_refused_with_the_known_ones(arguments: list[str]) -> None:
    refused = tidings(*arguments, "--set", "gamaI=2")
    assert isinstance(refused.exception, SettingError)
    assert "did you mean 'gammaI'? its settings are K, " in str(refused.exception)
