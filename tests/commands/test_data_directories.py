"""Tokens are made in the data directory, without HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import TidingsError
from tidings.store.catalogue import Catalogue

from .conftest import Run


def test_tokens_are_made_listed_and_revoked(run: Run, tmp_path: Path) -> None:
    Catalogue(tmp_path / "catalogue.sqlite").close()
    data = ("--data", str(tmp_path))
    secret = run("token", "create", "--tenant", "oil", "--label", "the desk", *data).out.strip()
    with Catalogue(tmp_path / "catalogue.sqlite") as catalogue:
        assert catalogue.tenant_of(secret) == "oil"
        [row] = catalogue.tokens("oil")
    listed = run("token", "list", "--tenant", "oil", *data).out
    assert row.id in listed
    assert "the desk" in listed
    assert secret not in listed
    run("token", "revoke", row.id, "--tenant", "oil", *data)
    with Catalogue(tmp_path / "catalogue.sqlite") as catalogue:
        assert catalogue.tenant_of(secret) is None
    with pytest.raises(TidingsError, match="oil has no"):
        run("token", "revoke", row.id, "--tenant", "oil", *data)
