"""The data directory of a service: names, formats, modes, checks, backups."""
