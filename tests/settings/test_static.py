"""The static configuration of a process: what is read of its file, and what is said about a bad one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.settings import InvalidSettings, InvalidValue
from fairlead.settings.file import PROBLEMS_MAX
from fairlead.settings.static import (
    DEFAULTS,
    Address,
    LogFormat,
    LogLevel,
    MemoryConfig,
    NamespaceConfig,
    PostgresConfig,
    Role,
    SearchAttributeType,
    SqliteConfig,
    StaticConfig,
    load_config,
    parse_address,
)

SECRET = "host=10.0.0.5 dbname=fairlead password=hunter2"  # noqa: S105 - nobody's


def load(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> StaticConfig:
    file = folder / "fairlead.yaml"
    file.write_text(text)
    return load_config(file, environment or {})


def complaints(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidSettings) as refused:
        load(folder, text, environment)
    return [str(problem) for problem in refused.value.problems]


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """\
frontend: {listen: 0.0.0.0:7233}
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
        frontend_listen=Address("0.0.0.0", 7233),  # noqa: S104 - read, not bound
        listen=Address("0.0.0.0", 7240),  # noqa: S104 - read, not bound
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


def test_no_file_is_needed_on_a_laptop() -> None:
    assert (str(DEFAULTS.frontend_listen), str(DEFAULTS.listen)) == ("127.0.0.1:7233", "127.0.0.1:7240")
    assert DEFAULTS.roles == set(Role)
    assert DEFAULTS.namespaces == (NamespaceConfig("default"),)
    assert DEFAULTS.store == SqliteConfig(Path("fairlead.db"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "store:\nmetrics:\n", "store: {sqlite: }\n"])
def test_what_is_left_out_or_empty_is_as_by_default(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, text)
    assert config.store == SqliteConfig(tmp_path / "fairlead.db")
    assert (config.listen, config.metrics_listen, config.hand_over_s) == (DEFAULTS.listen, None, DEFAULTS.hand_over_s)


def test_keys_may_be_in_any_case_and_with_underscores(tmp_path: Path) -> None:
    config = load(tmp_path, "STOP: {hand_over: 1s}\nstore: {postgres: {dsn_env: DSN}}\n", {"DSN": SECRET})
    assert config.hand_over_s == 1.0
    assert config.store == PostgresConfig(SECRET)


def test_a_store_that_many_hosts_share_is_divided_into_more_shards(tmp_path: Path) -> None:
    assert load(tmp_path, "").shards_at_first == 4
    assert load(tmp_path, "store: {memory: }").shards_at_first == 4
    assert load(tmp_path, "store: {postgres: {dsn: dbname=f}}").shards_at_first == 512
    assert load(tmp_path, "history: {shards: 7}\nstore: {postgres: {dsn: dbname=f}}").shards_at_first == 7


@pytest.mark.parametrize("roles", ["frontend", "matching", "history, matching", "frontend, history, matching"])
def test_roles_that_go_together_are_taken(tmp_path: Path, roles: str) -> None:
    assert load(tmp_path, f"roles: [{roles}]").roles == frozenset(Role(role) for role in roles.split(", "))


def test_the_absolute_name_of_a_file_stays_as_it_is(tmp_path: Path) -> None:
    assert load(tmp_path, "store: {sqlite: {file: /var/lib/f.db}}").store == SqliteConfig(Path("/var/lib/f.db"))


def test_the_memory_store_needs_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "store: {memory: {}}").store == MemoryConfig()
    assert load(tmp_path, "store: {memory: }").store == MemoryConfig()


def test_how_to_connect_comes_from_the_file_the_environment_or_another_file(tmp_path: Path) -> None:
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


def test_all_that_is_wrong_is_told_at_once_with_its_line_and_what_to_do(tmp_path: Path) -> None:
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
        "line 1: listen: 7240 is no address: write it as HOST:PORT, an IPv6 address in brackets, as in [::1]:PORT",
        'line 2: roles: ["matching", "frontend"] has no history beside matching: add it, or write roles: [frontend]',
        "line 4: store.sqlite.file: '' is no name of a file",
        "line 5: store.postgres is a second store, beside sqlite: keep one",
        "line 5: store.postgres.dsnEnv: 'NOT_THERE' is not set in the environment: set it to how to connect to it",
        "line 6: metric is unknown: did you mean metrics?",
        "line 7: log.level: 'loud' is none of the choices: debug, info, warning, error",
        'line 8: stop.handOver: \'soon\' is no duration: write it like "10s", "200ms" or "1m30s"',
        "line 8: stop.patience is unknown: use handOver, grace",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n", "line 1: the file is no mapping of keys to values"),
        ("listen: [\n", "line 2: the file is not YAML"),
        ("store: sqlite\n", "line 1: store is no mapping of keys to values"),
        ("store: {memory: {size: 1}}\n", "line 1: store.memory.size is unknown: nothing belongs here"),
        ("store: {postgres: {}}\n", "store.postgres has no dsn: give dsn, dsnEnv"),
        ("store: {postgres: {dsn: a=b, dsnEnv: B}}\n", "store.postgres.dsnEnv is given beside dsn: keep one"),
        ("store: {postgres: {dsn: 7}}\n", "store.postgres.dsn: the value is no text that says how to connect"),
        ("store: {postgres: {dsnEnv: 7}}\n", "store.postgres.dsnEnv: 7 is no name of an environment variable"),
        ("store: {postgres: {dsnFile: none}}\n", "'none' can't be read: No such file or directory"),
        ("store: {sqlite: {file: 7}}\n", "store.sqlite.file: 7 is no name of a file"),
        ("roles: []\n", "roles: [] is no list of roles"),
        ("roles: [history]\n", 'roles: ["history"] has history without matching, which go together'),
        ("history: {shards: 0}\n", "history.shards: 0 is out of bounds: choose 1 to 16384"),
        ("frontend: {port: 7233}\n", "frontend.port is unknown: use listen"),
        ("namespaces: orders\n", "namespaces: 'orders' is no list"),
        ("namespaces: [a b]\n", "'a b', is no name of a namespace"),
        ("namespaces: [{retention: 72h}]\n", "has an item without a name"),
        ("namespaces: [a, {name: a}]\n", "has a twice: name each once"),
        ("namespaces: [{name: a, retention: 1s}]\n", "the retention of a, '1s', is out of bounds"),
        ("namespaces: [{name: a, ttl: 1s}]\n", "has 'ttl' in namespace a: use name, retention, searchAttributes"),
        (
            "namespaces: [{name: a, searchAttributes: {B: Number}}]\n",
            "has 'Number' as the type of B: choose Text, Keyword, Int, Double, Bool, Datetime, KeywordList",
        ),
        ("namespaces: [{name: a, searchAttributes: [B]}]\n", "is no mapping of search attributes"),
        ("roles: [worker]\n", 'roles: ["worker"] is none of the choices: frontend, history, matching'),
        ("listen: 0.0.0.0:7240\n", "listen: 0.0.0.0:7240 is every address of this machine"),
        ("name: 10.0.0.1:0\n", "name: '10.0.0.1:0' is no address that other hosts can call"),
        ("listen: 127.0.0.1:1\nLISTEN: 127.0.0.1:2\n", "line 2: 'LISTEN' is another spelling of a key that is given"),
        ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "the file has the key 'listen' twice (line 2)"),
        ("stop: {grace: 2h}\n", "stop.grace: '2h' is out of bounds: choose 0s to 1h"),
        ("dynamicConfig: {pollInterval: 1ms}\n", "dynamicConfig.pollInterval: '1ms' is out of bounds"),
    ],
)
def test_each_mistake_gets_its_clear_complaint(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaint in "; ".join(complaints(tmp_path, text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="can't be read: No such file or directory"):
        load_config(tmp_path / "none.yaml", {})


def test_a_file_that_is_something_else_does_not_flood(tmp_path: Path) -> None:
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
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", ":7240", "a", "a:", "a:b", "a:-1", "a:65536", "a:٣", "::1:7240", "[a]:1", "a b:1", "-a:1", "a/b:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_address(text)
