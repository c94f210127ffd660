"""What can go wrong with a catalogue, one class for each way of putting it right."""

from __future__ import annotations

from tidings.errors import TidingsError


class CatalogueError(TidingsError):
    """The base of every error of a catalogue; raised itself where nothing but a look at the message helps."""


class CatalogueMissingError(CatalogueError):
    """What is to be changed is not there, or is another tenant's."""


class CatalogueConflictError(CatalogueError):
    """What is there already does not allow it. Nothing was changed."""


class CatalogueChangedError(CatalogueConflictError):
    """What a change was made for has changed in the meantime. Nothing was changed; look again, and try again."""


class CatalogueBusyError(CatalogueError):
    """The database is locked, or cannot be reached. Nothing was changed; try again."""
