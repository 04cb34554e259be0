"""The configuration of each process of a supervisor."""

import dataclasses

from fairlead.core.errors import FixRequest
from fairlead.settings.static.config import Address, PostgresConfig, StaticConfig
from fairlead.settings.static.tls import ServerTls

_PORT_MAX = 65_535


class CannotSupervise(FixRequest):
    """A configuration that several processes can't share."""


def check_supervised(config: StaticConfig, processes: int) -> None:
    """Raise `CannotSupervise` if several processes can't run with this configuration."""
    if not isinstance(config.store, PostgresConfig):
        raise CannotSupervise(
            f"--processes {processes} needs a PostgreSQL store: only one process can open a SQLite file or use a store "
            "in memory; give `store: {postgres: ...}` in the configuration file, or leave --processes out"
        )
    for key, address in (("listen", config.listen), ("name", config.name)):
        if address is not None and address.port and address.port + processes - 1 > _PORT_MAX:
            raise CannotSupervise(
                f"--processes {processes} needs {processes} ports from {address.port} on for `{key}`, but the last "
                f"port is {_PORT_MAX}: choose a lower one"
            )


def process_config(config: StaticConfig, number: int) -> StaticConfig:
    """The configuration of process `number`, from 0: hosts have consecutive ports; metrics are on a free port."""
    return dataclasses.replace(
        config,
        listen=_moved(config.listen, number),
        name=None if config.name is None else _moved(config.name, number),
        metrics_listen=None if config.metrics_listen is None else Address("127.0.0.1", 0),
        # The supervisor asks for them on loopback; its own page has the certificate.
        metrics_tls=ServerTls(),
    )


def _moved(address: Address, number: int) -> Address:
    return address._replace(port=address.port + number) if address.port else address
