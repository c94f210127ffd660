"""Who is which tenant: tokens, of which only hashes are kept."""

from __future__ import annotations

import base64
import hashlib
import secrets

import sqlalchemy as sa

from tidings.store.catalogue.database import Database, can_be_kept, now, plain
from tidings.store.catalogue.domain_table import check_name
from tidings.store.catalogue.rows import TokenRow
from tidings.store.catalogue.schema import ALL_TENANTS, tokens

_PREFIX = "tdg_"
_of_hash = sa.select(tokens.c.tenant).where(tokens.c.hash == sa.bindparam("hash_"))


class Tokens:
    """The part of the catalogue that knows tokens."""

    _database: Database

    def create_token(self, tenant: str, label: str = "") -> str:
        """Make a token of a tenant, and answer its secret, which is not kept: only its hash is."""
        check_name("tenant", tenant)
        secret = _PREFIX + secrets.token_urlsafe(32)
        row = {"hash": _hash(secret), "id": random_id("tok"), "tenant": tenant, "label": plain(label, "label")}
        with self._database.writing(tenant) as connection:
            connection.execute(sa.insert(tokens), {**row, "created": now()})
        return secret

    def tenant_of(self, secret: str) -> str | None:
        """The tenant who has a token with this secret.

        The secret is as random as its hash is long, so that how long looking it up takes tells nothing.
        """
        if not secret.startswith(_PREFIX):
            return None
        with self._database.reading(ALL_TENANTS) as connection:
            return connection.execute(_of_hash, {"hash_": _hash(secret)}).scalar_one_or_none()

    def tokens(self, tenant: str) -> list[TokenRow]:
        """The tokens of a tenant, the oldest first."""
        wanted = sa.select(tokens.c.id, tokens.c.tenant, tokens.c.label, tokens.c.created)
        with self._database.reading(tenant) as connection:
            rows = connection.execute(wanted.where(tokens.c.tenant == tenant).order_by(tokens.c.created)).mappings()
            return [TokenRow(**row) for row in rows]

    def revoke_token(self, tenant: str, id: str) -> bool:
        """Have a token be none any more; answers whether it was one."""
        if not can_be_kept(id):
            return False
        with self._database.writing(tenant) as connection:
            gone = connection.execute(sa.delete(tokens).where(tokens.c.tenant == tenant, tokens.c.id == id))
            return gone.rowcount > 0


def random_id(kind: str) -> str:
    """A name that nobody guesses: 80 random bits, in letters and digits that are not mistaken for each other."""
    return f"{kind}_{base64.b32encode(secrets.token_bytes(10)).decode().lower()}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
