"""The configuration of each process of a supervisor."""

from pathlib import Path

import pytest

from fairlead.settings.static.config import Address, MemoryConfig, PostgresConfig, SqliteConfig, StaticConfig
from fairlead.supervisor.process_config import CannotSupervise, check_supervised, process_config

CONFIG = StaticConfig(store=PostgresConfig("dbname=fairlead"))


def test_hosts_have_consecutive_ports_and_metrics_of_their_own() -> None:
    config = StaticConfig(
        listen=Address("0.0.0.0", 7240),  # noqa: S104 - every address of the machine
        name=Address("10.0.0.5", 7240),
        metrics_listen=Address("10.0.0.5", 9090),
    )
    third = process_config(config, 2)
    assert (third.listen.port, third.name, third.metrics_listen) == (
        7242,
        Address("10.0.0.5", 7242),
        Address("127.0.0.1", 0),
    )
    assert third.frontend_listen == config.frontend_listen
    assert process_config(config, 0).listen == config.listen


def test_port_0_and_missing_metrics_stay_unchanged() -> None:
    config = process_config(StaticConfig(listen=Address("127.0.0.1", 0)), 3)
    assert (config.listen.port, config.name, config.metrics_listen) == (0, None, None)


@pytest.mark.parametrize("store", [SqliteConfig(Path("fairlead.db")), MemoryConfig()])
def test_a_store_of_one_process_is_refused(store: SqliteConfig | MemoryConfig) -> None:
    with pytest.raises(CannotSupervise, match=r"needs a PostgreSQL store.*leave --processes out"):
        check_supervised(StaticConfig(store=store), 2)


def test_ports_beyond_the_last_one_are_refused() -> None:
    check_supervised(CONFIG, 64)
    with pytest.raises(CannotSupervise, match="needs 4 ports from 65533 on for `listen`"):
        check_supervised(StaticConfig(store=CONFIG.store, listen=Address("127.0.0.1", 65_533)), 4)
