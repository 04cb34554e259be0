"""A server refuses unsafe addresses, and keeps its files private."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead.server import Server
from fairlead.server.exposure import Careless, check_exposure
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import (
    Address,
    HttpConfig,
    JournalConfig,
    Role,
    SecurityConfig,
    SqliteConfig,
    StaticConfig,
    UiConfig,
)
from fairlead.settings.static.tls import Pem, ServerTls, TlsConfig, TlsGroup
from tests.cli.processes import run

ANYWHERE = Address("0.0.0.0", 7233)  # noqa: S104 - not bound
LOOPBACK = Address("127.0.0.1", 7240)
AUTHORIZED = SecurityConfig(AuthorizationConfig(authorizer="default"))
SECRET = SecurityConfig(secret="0123456789abcdef")  # noqa: S106 - of a test
HOST_CERTIFICATES = SecurityConfig(
    tls=TlsConfig(internode=TlsGroup(ServerTls(Pem(), Pem(), (Pem(),), requires_client=True)))
)
TLS_ALONE = SecurityConfig(tls=TlsConfig(frontend=TlsGroup(ServerTls(Pem(), Pem()))))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (StaticConfig(), ""),
        (StaticConfig(frontend_listen=Address("::1", 1), listen=Address("localhost", 1)), ""),
        (StaticConfig(frontend_listen=ANYWHERE), "frontend.listen 0.0.0.0:7233"),
        (StaticConfig(frontend_listen=Address("::", 1)), "frontend.listen"),
        (StaticConfig(frontend_listen=Address("10.0.0.1", 1)), "frontend.listen"),
        (StaticConfig(listen=ANYWHERE), "listen 0.0.0.0:7233"),
        (StaticConfig(http=HttpConfig(ANYWHERE)), "frontend.http.listen 0.0.0.0:7233"),
        (StaticConfig(ui=UiConfig(*ANYWHERE)), "ui.listen 0.0.0.0:7233"),
        (StaticConfig(http=HttpConfig(ANYWHERE), ui=UiConfig(*ANYWHERE), security=AUTHORIZED), ""),
        (StaticConfig(http=HttpConfig(LOOPBACK), ui=UiConfig(*LOOPBACK)), ""),
        # Encryption alone identifies no caller.
        (StaticConfig(frontend_listen=ANYWHERE, security=TLS_ALONE), "frontend.listen"),
        (StaticConfig(frontend_listen=ANYWHERE, security=SECRET), "frontend.listen"),
        (StaticConfig(frontend_listen=ANYWHERE, listen=ANYWHERE, security=AUTHORIZED), ""),
        (StaticConfig(listen=ANYWHERE, security=SECRET), ""),
        (StaticConfig(listen=ANYWHERE, security=HOST_CERTIFICATES), ""),
        (StaticConfig(frontend_listen=ANYWHERE, roles=frozenset({Role.HISTORY, Role.MATCHING})), ""),
        (StaticConfig(listen=ANYWHERE, roles=frozenset({Role.FRONTEND})), ""),
    ],
)
def test_an_address_beyond_loopback_needs_authorization(config: StaticConfig, named: str) -> None:
    if not named:
        check_exposure(config)
        return
    with pytest.raises(Careless, match=named):
        check_exposure(config)
    permitted = replace(config, security=replace(config.security, is_insecure=True))
    for _ in range(2):
        # Every start logs the warning.
        with capture_logs() as logs:
            check_exposure(permitted)
        [warning] = logs
        assert warning["log_level"] == "warning"
        assert warning["event"].startswith("insecure: other machines may reach this server")
        assert named in warning["addresses"]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (StaticConfig(frontend_listen=ANYWHERE, security=AUTHORIZED), "frontend.listen 0.0.0.0:7233"),
        (StaticConfig(http=HttpConfig(ANYWHERE), security=AUTHORIZED), "frontend.http.listen 0.0.0.0:7233"),
        (StaticConfig(ui=UiConfig(*ANYWHERE), security=AUTHORIZED), "ui.listen 0.0.0.0:7233"),
        (StaticConfig(frontend_listen=LOOPBACK, security=AUTHORIZED), ""),
        (StaticConfig(frontend_listen=ANYWHERE, security=replace(AUTHORIZED, tls=TLS_ALONE.tls)), ""),
    ],
)
def test_a_warning_names_addresses_at_which_keys_and_tokens_arrive_in_clear_text(
    config: StaticConfig, named: str
) -> None:
    with capture_logs() as logs:
        check_exposure(config)
    assert [log["addresses"] for log in logs if "without TLS" in log["event"]] == ([named] if named else [])


async def test_start_dev_needs_the_flag_for_an_address_beyond_loopback() -> None:
    refused = await run("server", "start-dev", "--port", "0", "--ip", "0.0.0.0")  # noqa: S104 - it is refused
    assert refused.code == 2
    assert "--ip 0.0.0.0:0: other machines may reach it" in refused.line
    assert "--insecure" in refused.line


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.iterdir() if path.is_file()}


async def test_files_are_made_for_the_servers_own_user(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        server = Server(
            StaticConfig(
                frontend_listen=Address("127.0.0.1", 0),
                listen=Address("127.0.0.1", 0),
                store=SqliteConfig(tmp_path / "fairlead.db"),
                journal=JournalConfig(tmp_path / "journal" / "deep"),
                hand_over_s=0.0,
                grace_s=0.0,
            )
        )
        await server.start()
        try:
            assert modes(tmp_path) == dict.fromkeys(
                ("fairlead.db", "fairlead.db-wal", "fairlead.db-shm", "fairlead.db.lock"), 0o600
            )
        finally:
            await server.stop()
        folders = [path for path in (tmp_path / "journal").rglob("*") if path.is_dir()]
        assert {mode(path) for path in (tmp_path / "journal", *folders)} == {0o700}
        segments = [path for path in (tmp_path / "journal").rglob("*") if path.is_file()]
        assert {mode(path) for path in segments} <= {0o600}
    finally:
        os.umask(before)
