"""The static configuration of a process: the format of its file, and the errors of an invalid file."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.settings import InvalidSettings, InvalidValue
from fairlead.settings.dynamic.file import PROBLEMS_MAX
from fairlead.settings.static.config import (
    DEFAULTS,
    Address,
    HttpConfig,
    LogFormat,
    LogLevel,
    MemoryConfig,
    NamespaceConfig,
    PostgresConfig,
    Role,
    SearchAttributeType,
    SqliteConfig,
    StaticConfig,
    UiConfig,
    load_config,
    parse_address,
)

SECRET = "host=10.0.0.5 dbname=fairlead password=hunter2"  # noqa: S105 - not a real password


def load(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> StaticConfig:
    file = folder / "fairlead.yaml"
    file.write_text(text)
    return load_config(file, environment or {})


def complaints(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidSettings) as raised:
        load(folder, text, environment)
    return [str(problem) for problem in raised.value.problems]


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """\
frontend: {listen: 0.0.0.0:7233, http: {listen: 127.0.0.1:7243, forwardedHeaders: [X-Tenant]}}
ui: {listen: 127.0.0.1:8233, assetPath: pages, publicPath: /temporal/, codecEndpoint: "https://codec.example",
  lake: lake}
listen: 0.0.0.0:7240
name: 10.0.0.1:7240
roles: [history, matching]
store: {sqlite: {file: data/tasks.db}}
history: {shards: 16}
namespaces:
  - orders
  - {name: billing, retention: 72h, searchAttributes: {Customer: Keyword, Amount: Double}}
dynamicConfig: {file: dynamic.yaml, pollInterval: 5s}
metrics: {listen: "[::1]:9090"}
log: {level: debug, format: json}
stop: {handOver: 500ms, grace: 1m}
"""
    assert load(tmp_path, text) == StaticConfig(
        frontend_listen=Address("0.0.0.0", 7233),  # noqa: S104 - parsed, not bound
        http=HttpConfig(Address("127.0.0.1", 7243), ("X-Tenant",)),
        ui=UiConfig("127.0.0.1", 8233, tmp_path / "pages", "/temporal", "https://codec.example", tmp_path / "lake"),
        listen=Address("0.0.0.0", 7240),  # noqa: S104 - parsed, not bound
        name=Address("10.0.0.1", 7240),
        roles=frozenset({Role.HISTORY, Role.MATCHING}),
        store=SqliteConfig(tmp_path / "data/tasks.db"),
        history_shards=16,
        namespaces=(
            NamespaceConfig("orders"),
            NamespaceConfig(
                "billing",
                72 * 3600.0,
                {"Customer": SearchAttributeType.KEYWORD, "Amount": SearchAttributeType.DOUBLE},
            ),
        ),
        dynamic_file=tmp_path / "dynamic.yaml",
        dynamic_poll_interval_s=5.0,
        metrics_listen=Address("::1", 9090),
        log_level=LogLevel.DEBUG,
        log_format=LogFormat.JSON,
        hand_over_s=0.5,
        grace_s=60.0,
    )


def test_the_defaults_suit_a_local_server_without_a_file() -> None:
    assert (str(DEFAULTS.frontend_listen), str(DEFAULTS.listen)) == ("127.0.0.1:7233", "127.0.0.1:7240")
    assert DEFAULTS.roles == set(Role)
    assert DEFAULTS.namespaces == (NamespaceConfig("default"),)
    assert DEFAULTS.store == SqliteConfig(Path("fairlead.db"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "store:\nmetrics:\n", "store: {sqlite: }\n"])
def test_missing_or_empty_sections_have_default_values(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, text)
    assert config.store == SqliteConfig(tmp_path / "fairlead.db")
    assert (config.listen, config.metrics_listen, config.hand_over_s) == (DEFAULTS.listen, None, DEFAULTS.hand_over_s)


def test_keys_can_have_any_case_and_underscores(tmp_path: Path) -> None:
    config = load(tmp_path, "STOP: {hand_over: 1s}\nstore: {postgres: {dsn_env: DSN}}\n", {"DSN": SECRET})
    assert config.hand_over_s == 1.0
    assert config.store == PostgresConfig(SECRET)


def test_a_shared_store_has_more_shards_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, "").shards_at_first == 4
    assert load(tmp_path, "store: {memory: }").shards_at_first == 4
    assert load(tmp_path, "store: {postgres: {dsn: dbname=f}}").shards_at_first == 512
    assert load(tmp_path, "history: {shards: 7}\nstore: {postgres: {dsn: dbname=f}}").shards_at_first == 7


@pytest.mark.parametrize("roles", ["frontend", "matching", "history, matching", "frontend, history, matching"])
def test_valid_combinations_of_roles_are_accepted(tmp_path: Path, roles: str) -> None:
    assert load(tmp_path, f"roles: [{roles}]").roles == frozenset(Role(role) for role in roles.split(", "))


def test_an_absolute_file_name_is_kept(tmp_path: Path) -> None:
    assert load(tmp_path, "store: {sqlite: {file: /var/lib/f.db}}").store == SqliteConfig(Path("/var/lib/f.db"))


def test_the_memory_store_needs_no_settings(tmp_path: Path) -> None:
    assert load(tmp_path, "store: {memory: {}}").store == MemoryConfig()
    assert load(tmp_path, "store: {memory: }").store == MemoryConfig()


def test_the_connection_string_comes_from_the_file_the_environment_or_another_file(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text(f"{SECRET}\n")
    plain = "host=10.0.0.5 dbname=fairlead"
    assert load(tmp_path, f"store: {{postgres: {{dsn: {plain}}}}}").store == PostgresConfig(plain)
    assert load(tmp_path, "store: {postgres: {dsnFile: dsn}}").store == PostgresConfig(SECRET)
    assert load(tmp_path, "store: {postgres: {dsnEnv: F_DSN}}", {"F_DSN": SECRET}).store == PostgresConfig(SECRET)


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    assert "hunter2" not in repr(load(tmp_path, "store: {postgres: {dsnEnv: DSN}}", {"DSN": SECRET}))
    url = "postgresql://me:hunter2@10.0.0.5/fairlead"
    for dsn in (SECRET, url):
        (complaint,) = complaints(tmp_path, f"store: {{postgres: {{dsn: '{dsn}'}}}}")
        assert complaint.startswith("line 1: store.postgres.dsn: the value has a password in it")
        assert "dsnEnv" in complaint
        assert "hunter2" not in complaint


def test_all_problems_are_reported_together_with_line_and_advice(tmp_path: Path) -> None:
    text = """\
listen: 7240
roles: [matching, frontend]
store:
  sqlite: {file: ""}
  postgres: {dsnEnv: NOT_THERE}
metric: {listen: 127.0.0.1:9090}
log: {level: loud}
stop: {handOver: soon, grace: 30s, patience: 1s}
"""
    assert complaints(tmp_path, text) == [
        "line 1: listen: 7240 is not an address: write it as HOST:PORT, an IPv6 address in brackets, as in [::1]:PORT",
        (
            'line 2: roles: ["matching", "frontend"] has frontend and matching without history: add history, '
            "or write roles: [frontend]"
        ),
        "line 4: store.sqlite.file: '' is not a file name",
        "line 5: store.postgres is a second store, beside sqlite: keep one",
        "line 5: store.postgres.dsnEnv: 'NOT_THERE' is not set in the environment: set it to the connection string",
        "line 6: metric is unknown: did you mean metrics?",
        "line 7: log.level: 'loud' is not one of the choices: debug, info, warning, error",
        'line 8: stop.handOver: \'soon\' is not a duration: write it like "10s", "200ms" or "1m30s"',
        "line 8: stop.patience is unknown: use handOver, grace",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n", "line 1: the file is not a mapping of keys to values"),
        ("listen: [\n", "line 2: the file is not YAML"),
        ("store: sqlite\n", "line 1: store is not a mapping of keys to values"),
        ("store: {memory: {size: 1}}\n", "line 1: store.memory.size is unknown: nothing belongs here"),
        ("store: {postgres: {}}\n", "store.postgres has no dsn: give dsn, dsnEnv"),
        ("store: {postgres: {dsn: a=b, dsnEnv: B}}\n", "store.postgres.dsnEnv is given beside dsn: keep one"),
        ("store: {postgres: {dsn: 7}}\n", "store.postgres.dsn: the value is not a connection string"),
        ("store: {postgres: {dsnEnv: 7}}\n", "store.postgres.dsnEnv: 7 is not the name of an environment variable"),
        ("store: {postgres: {dsnFile: none}}\n", "'none' can't be read: No such file or directory"),
        ("store: {sqlite: {file: 7}}\n", "store.sqlite.file: 7 is not a file name"),
        ("roles: []\n", "roles: [] is not a list of roles"),
        ("roles: [history]\n", 'roles: ["history"] has history without matching, but they go together'),
        ("history: {shards: 0}\n", "history.shards: 0 is out of bounds: choose 1 to 16384"),
        ("frontend: {port: 7233}\n", "frontend.port is unknown: use listen, http"),
        ("ui: {}\n", "ui has no listen: give the address of the web page, say 127.0.0.1:8233"),
        ("ui: {listen: 'x:1', publicPath: a}\n", "ui.publicPath: 'a' is not a path: write it like /temporal"),
        ("ui: {listen: 'x:1', lake: 3}\n", "ui.lake: 3 is not a file name"),
        ("ui: {listen: 'x:1', codecEndpoint: a}\n", "ui.codecEndpoint: 'a' is not a URL: write it like https://"),
        (
            "frontend: {http: {forwardedHeaders: [X]}}\n",
            "frontend.http.forwardedHeaders is given without listen: give the address of the HTTP API, too",
        ),
        ("namespaces: orders\n", "namespaces: 'orders' is not a list"),
        ("namespaces: [a b]\n", "'a b', is not a valid namespace name"),
        ("namespaces: [{retention: 72h}]\n", "has an item without a name"),
        ("namespaces: [a, {name: a}]\n", "has a twice: name each once"),
        ("namespaces: [{name: a, retention: 1s}]\n", "the retention of a, '1s', is out of bounds"),
        ("namespaces: [{name: a, ttl: 1s}]\n", "has 'ttl' in namespace a: use name, retention, searchAttributes"),
        (
            "namespaces: [{name: a, searchAttributes: {B: Number}}]\n",
            "has 'Number' as the type of B: choose Text, Keyword, Int, Double, Bool, Datetime, KeywordList",
        ),
        ("namespaces: [{name: a, searchAttributes: [B]}]\n", "is not a mapping of search attributes"),
        ("roles: [worker]\n", 'roles: ["worker"] is not one of the choices: frontend, history, matching'),
        ("listen: 0.0.0.0:7240\n", "listen: 0.0.0.0:7240 is every address of this machine"),
        ("name: 10.0.0.1:0\n", "name: '10.0.0.1:0' is not an address that other hosts can call"),
        ("listen: 127.0.0.1:1\nLISTEN: 127.0.0.1:2\n", "line 2: 'LISTEN' is another spelling of a given key"),
        ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "the file has the key 'listen' twice (line 2)"),
        ("stop: {grace: 2h}\n", "stop.grace: '2h' is out of bounds: choose 0s to 1h"),
        ("dynamicConfig: {pollInterval: 1ms}\n", "dynamicConfig.pollInterval: '1ms' is out of bounds"),
    ],
)
def test_each_mistake_has_a_clear_error(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaint in "; ".join(complaints(tmp_path, text))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="can't be read: No such file or directory"):
        load_config(tmp_path / "none.yaml", {})


def test_the_number_of_reported_problems_is_bounded(tmp_path: Path) -> None:
    text = "".join(f"key{number}: 1\n" for number in range(20_000))
    assert len(complaints(tmp_path, text)) == PROBLEMS_MAX


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7240", Address("127.0.0.1", 7240)),
        ("matching-0.fairlead.svc:80", Address("matching-0.fairlead.svc", 80)),
        ("[::1]:0", Address("::1", 0)),
    ],
)
def test_an_address_survives_a_round_trip(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", ":7240", "a", "a:", "a:b", "a:-1", "a:65536", "a:٣", "::1:7240", "[a]:1", "a b:1", "-a:1", "a/b:1"]
)
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_address(text)
