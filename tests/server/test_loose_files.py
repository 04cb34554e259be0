"""A start warns once of secrets and data that other users of the machine can read."""

from pathlib import Path

from structlog.testing import capture_logs

from fairlead.server import Server
from fairlead.server.loose_files import FILES_SHOWN_MAX, loose_files, warn_of_loose_files
from fairlead.settings.static.config import (
    Address,
    ClusterConfig,
    JournalConfig,
    SqliteConfig,
    StaticConfig,
    load_config,
)

FILE = """
store: {sqlite: {file: fairlead.db}}
journal: {folder: journal}
internode: {secretFile: secret}
cluster:
  name: a
  apiKeyFiles: {"b.example:7233": key-of-b}
metrics: {tls: {certFile: cert.pem, keyFile: metrics.key}}
global:
  tls:
    frontend:
      server: {certFile: cert.pem, keyFile: frontend.key}
      hostOverrides: {"a.example": {certFile: cert.pem, keyFile: override.key}}
    internode: {server: {certFile: cert.pem, keyFile: internode.key}}
    remoteClusters:
      "b.example": {client: {rootCaFiles: [cert.pem]}, server: {certFile: cert.pem, keyFile: remote.key}}
"""
KEYS = {f"{name}.key" for name in ("metrics", "frontend", "override", "internode", "remote")}
FILES = KEYS | {"secret", "key-of-b", "fairlead.db", "fairlead.db-wal", "journal"}


def write(folder: Path, mode: int) -> StaticConfig:
    for name in FILES - {"journal"}:
        (folder / name).write_text("0123456789abcdef0123456789abcdef")
        (folder / name).chmod(mode)
    (folder / "journal").mkdir(exist_ok=True)
    (folder / "journal").chmod(mode | 0o100)
    (folder / "cert.pem").write_text("public")
    (folder / "fairlead.yaml").write_text(FILE)
    return load_config(folder / "fairlead.yaml", {})


def warned(config: StaticConfig) -> set[str]:
    with capture_logs() as logs:
        warn_of_loose_files(loose_files(config))
    assert len(logs) <= 1
    return {Path(file).name for each in logs for file in each["files"]}


def test_one_warning_names_every_secret_and_data_file_that_others_can_read(tmp_path: Path) -> None:
    assert warned(write(tmp_path, 0o644)) == FILES
    assert warned(write(tmp_path, 0o602)) == FILES


def test_files_for_the_user_and_its_group_are_no_problem_nor_are_missing_ones(tmp_path: Path) -> None:
    config = write(tmp_path, 0o640)
    assert warned(config) == set()
    (tmp_path / "frontend.key").unlink()
    assert warned(config) == set()


def test_the_file_of_a_connection_string_is_private(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("dbname=fairlead")
    (tmp_path / "dsn").chmod(0o644)
    (tmp_path / "fairlead.yaml").write_text("store: {postgres: {dsnFile: dsn}}")
    assert warned(load_config(tmp_path / "fairlead.yaml", {})) == {"dsn"}


def test_a_warning_names_a_bounded_number_of_files(tmp_path: Path) -> None:
    names = [tmp_path / f"key-{number}" for number in range(FILES_SHOWN_MAX + 5)]
    for name in names:
        name.write_text("x")
        name.chmod(0o644)
    with capture_logs() as logs:
        warn_of_loose_files(loose_files(StaticConfig(cluster=ClusterConfig("a", key_files=tuple(names)))))
    [warning] = logs
    assert warning["files"] == [str(name) for name in names[:FILES_SHOWN_MAX]]
    assert warning["more"] == 5


async def test_a_server_warns_of_its_loose_store_at_each_start_and_of_no_new_one(tmp_path: Path) -> None:
    config = StaticConfig(
        frontend_listen=Address("127.0.0.1", 0),
        listen=Address("127.0.0.1", 0),
        store=SqliteConfig(tmp_path / "fairlead.db"),
        journal=JournalConfig(tmp_path / "journal"),
        hand_over_s=0.0,
        grace_s=0.0,
    )

    async def warnings() -> list[list[str]]:
        with capture_logs() as logs:
            server = Server(config)
            await server.start()
            await server.stop()
        return [each["files"] for each in logs if each["event"].startswith("other users of this machine")]

    assert await warnings() == []
    (tmp_path / "fairlead.db").chmod(0o644)
    for _ in range(2):
        assert await warnings() == [[str(tmp_path / "fairlead.db")]]
