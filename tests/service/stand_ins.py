"""Small programs in place of gateway and driver, for tests of the supervisor; run as one, a supervisor of both."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tidings.service.data.data_directory import DataDirectory
from tidings.service.supervisor import ServicePlan, Supervisor

GATEWAY = """
import os, socket, sys
open(sys.argv[1] + "/gateway.pid", "w").write(str(os.getpid()))
listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
while True: listening.accept()
"""
DRIVER = """
import json, os, signal, subprocess, sys
folder = sys.argv[1]
left = subprocess.Popen(["sleep", "600"])
open(folder + "/left.pid", "w").write(str(left.pid))
def ended(*_):
    left.kill()
    open(folder + "/ended", "a").write("driver ")
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
open(folder + "/driver.tmp", "w").write(json.dumps({"pid": os.getpid(), "state": "running"}))
os.replace(folder + "/driver.tmp", folder + "/driver.json")
while True: signal.pause()
"""


@dataclass(frozen=True)
class StandIn(ServicePlan):
    gateway_program: str = GATEWAY
    driver_program: str = DRIVER

    def gateway(self) -> list[str]:
        return [sys.executable, "-S", "-c", self.gateway_program, str(self.data.path), str(self.port)]

    def driver(self) -> list[str]:
        return [sys.executable, "-S", "-c", self.driver_program, str(self.data.path)]


if __name__ == "__main__":
    folder, port = sys.argv[1:]
    Supervisor(StandIn(DataDirectory(folder), port=int(port))).run(lambda: print("ready", flush=True))
    print("ended", flush=True)
