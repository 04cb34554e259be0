"""Warns of secrets, and of files of the store and the journal, that other users of the machine can read or change."""

import stat
from collections.abc import Iterator
from pathlib import Path

from fairlead.settings.static.config import PostgresConfig, SqliteConfig, StaticConfig
from fairlead.settings.static.tls import ServerTls
from fairlead.telemetry import get_log

# Permissions of users outside the file's group.
_OTHERS = stat.S_IROTH | stat.S_IWOTH
# Number of files that one warning names.
FILES_SHOWN_MAX = 20

_log = get_log("server")


def loose_files(config: StaticConfig) -> list[str]:
    """Return all such files. Files that don't exist yet are made with the right permissions."""
    return [str(file) for file in dict.fromkeys(_private_files(config)) if _is_loose(file)]


def warn_of_loose_files(loose: list[str]) -> None:
    """Log one warning that names these files, if there are any."""
    if loose:
        more = {"more": len(loose) - FILES_SHOWN_MAX} if len(loose) > FILES_SHOWN_MAX else {}
        _log.warning(
            "other users of this machine can read or change files of the server: take that from them, chmod o= FILE",
            files=loose[:FILES_SHOWN_MAX],
            **more,
        )


def _private_files(config: StaticConfig) -> Iterator[Path]:
    security = config.security
    if security.secret_file is not None:
        yield security.secret_file
    if config.cluster is not None:
        yield from config.cluster.key_files
    tls = security.tls
    servers: list[ServerTls] = [config.metrics_tls]
    for group in (tls.frontend, tls.internode, *tls.remotes.values()):
        servers += [group.server, *group.overrides.values()]
    for server in servers:
        if server.key is not None and server.key.file is not None:
            yield server.key.file
    if isinstance(config.store, PostgresConfig) and config.store.dsn_file is not None:
        yield config.store.dsn_file
    if isinstance(config.store, SqliteConfig):
        file = config.store.file
        for suffix in ("", "-wal", "-shm"):
            yield file.with_name(file.name + suffix)
    if config.journal is not None:
        yield config.journal.folder


def _is_loose(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & _OTHERS)
    except OSError:
        return False
