"""The sections `global`, `internode` and `insecure` of the configuration."""

import base64
from pathlib import Path

import pytest

from fairlead.settings import InvalidSettings
from fairlead.settings.static.authorization import AuthorizationConfig, CertificateGrant
from fairlead.settings.static.config import StaticConfig, load_config
from fairlead.settings.static.security import SecurityConfig
from fairlead.settings.static.tls import ClientTls, Pem, ServerTls, TlsConfig, TlsGroup

SECRET = "0123456789abcdef"  # noqa: S105 - of a test


def load(folder: Path, text: str) -> StaticConfig:
    file = folder / "fairlead.yaml"
    file.write_text(text)
    return load_config(file, {"SECRET": SECRET, "SHORT": "short"})


def complaints(folder: Path, text: str) -> list[str]:
    with pytest.raises(InvalidSettings) as refused:
        load(folder, text)
    return [str(problem) for problem in refused.value.problems]


def test_temporals_keys_of_authorization_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
global:
  authorization:
    jwtKeyProvider:
      keySourceURIs: ["https://issuer.example/jwks.json", "file:///etc/jwks.json", ""]
      refreshInterval: 5m
    permissionsClaimName: groups
    permissionsRegex: ^(?P<role>\\w+):(?P<namespace>\\w+)$
    authorizer: default
    claimMapper: default
    authHeaderName: X-Token
    authExtraHeaderName: x-extras
    audience: fairlead
    remoteClusterAuth: {require: true}
    certificates:
      billing.example: {permissions: ["orders:worker", "temporal-system:read"]}
      b.example: {cluster: b}
      ops.example: {permissions: ["temporal-system:admin"], authorities: ["AB:CDS"], authorityFiles: [ops-ca.pem]}
""".replace("CDS", ":".join(["cd"] * 31)),
    )
    assert config.security.authorization == AuthorizationConfig(
        authorizer="default",
        claim_mapper="default",
        key_sources=("https://issuer.example/jwks.json", "file:///etc/jwks.json"),
        keys_refresh_s=300.0,
        permissions_claim="groups",
        permissions_regex=r"^(?P<role>\w+):(?P<namespace>\w+)$",
        header="x-token",
        extras_header="x-extras",
        audience="fairlead",
        certificates=(
            CertificateGrant("billing.example", (("orders", "worker"), ("temporal-system", "read"))),
            CertificateGrant("b.example", (), "b"),
            CertificateGrant(
                "ops.example",
                (("temporal-system", "admin"),),
                authorities=("ab" + "cd" * 31,),
                authority_files=(Pem(tmp_path / "ops-ca.pem"),),
            ),
        ),
    )


def test_nothing_is_configured_by_default(tmp_path: Path) -> None:
    config = load(tmp_path, "").security
    assert config == SecurityConfig()
    assert not config.authorization.is_on
    assert not config.guards_hosts


def test_temporals_keys_of_tls_are_read(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    config = load(
        tmp_path,
        f"""
global:
  tls:
    internode:
      server: {{certFile: host.pem, keyFile: host.key, clientCaFiles: [ca.pem], requireClientAuth: true}}
      client: {{serverName: hosts, rootCaFiles: [ca.pem]}}
    frontend:
      server: {{certData: {data}, keyData: {data}, clientCaData: [{data}]}}
      client: {{disableHostVerification: true, forceTLS: true}}
      hostOverrides:
        Orders.Example: {{certFile: /orders.pem, keyFile: /orders.key}}
    systemWorker: {{certFile: a, keyFile: b, client: {{serverName: x}}}}
    remoteClusters:
      "b.example:7233": {{client: {{rootCaData: [{data}]}}}}
    refreshInterval: 10s
    expirationChecks: {{warningWindow: 240h, errorWindow: 48h, checkInterval: 1h}}
""",
    )
    server = ServerTls(Pem(tmp_path / "host.pem"), Pem(tmp_path / "host.key"), (Pem(tmp_path / "ca.pem"),), True)
    raw = Pem(None, b"PEM")
    assert config.security.tls == TlsConfig(
        internode=TlsGroup(server, ClientTls("hosts", True, (Pem(tmp_path / "ca.pem"),))),
        frontend=TlsGroup(
            ServerTls(raw, raw, (raw,)),
            ClientTls(verifies_host=False, is_forced=True),
            {"orders.example": ServerTls(Pem(Path("/orders.pem")), Pem(Path("/orders.key")))},
        ),
        remotes={"b.example:7233": TlsGroup(client=ClientTls(authorities=(raw,)))},
        refresh_s=10.0,
        warning_s=864_000.0,
        error_s=172_800.0,
        check_s=3_600.0,
    )
    assert config.security.has_host_certificates
    assert "PEM" not in repr(config)


def test_the_secret_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    for text in ("internode: {secretFile: secret}", "internode: {secretEnv: SECRET}"):
        config = load(tmp_path, text).security
        assert (config.secret, config.guards_hosts) == (SECRET, True)
        assert SECRET not in repr(config)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("global: {authorization: {claimMapper: default, authorizer: default}}", "keySourceURIs has no sources"),
        ("global: {authorization: {certificates: {a: {permissions: [a:read]}}}}", "has no authorizer"),
        ("global: {authorization: {authorizer: x, certificates: {a: {permissions: [a:king]}}}}", "NAMESPACE:ROLE"),
        ("global: {authorization: {permissionsRegex: '('}}", "not a regular expression"),
        ("global: {authorization: {permissionsRegex: 'a'}}", "no groups named namespace and role"),
        ("global: {authorization: {jwtKeyProvider: {keySourceURIs: ['http://x.example/a']}}}", "give https://"),
        ("global: {authorization: {jwtKeyProvider: {keySourceURIs: ['ftp://x/a']}}}", "give https://"),
        ("global: {authorization: {jwtKeyProvider: {keySourceURIs: ['file://host/a']}}}", "give https://"),
        ("global: {authorization: {authHeaderName: 'a b'}}", "not the name of a header"),
        ("global: {authorization: {autorizer: x}}", "did you mean authorizer?"),
        ("global: {tls: {frontend: {server: {certFile: a}}}}", "without the other"),
        ("global: {tls: {frontend: {server: {certFile: a, certData: YQ==, keyFile: b}}}}", "beside certFile"),
        ("global: {tls: {frontend: {server: {certFile: a, keyFile: b, requireClientAuth: true}}}}", "clientCaFiles"),
        ("global: {tls: {frontend: {server: {clientCaFiles: [a]}}}}", "no certificate and key"),
        ("global: {tls: {frontend: {server: {certData: '%', keyFile: b}}}}", "not base64"),
        ("global: {tls: {frontend: {hostOverrides: {a: {certFile: a, keyFile: b}}}}}", "has no effect without"),
        ("global: {tls: {internode: {hostOverrides: {a: {certFile: a, keyFile: b}}}}}", "hostOverrides is unknown"),
        ("internode: {secretEnv: SHORT}", "has no secret"),
        ("internode: {secretEnv: MISSING}", "has no secret"),
        ("internode: {secretFile: missing}", "can't be read"),
        ("internode: {secretFile: a, secretEnv: SECRET}", "beside secretFile"),
        ("{global: {authorization: {authorizer: default}}, store: {postgres: {dsn: host=x}}}", "internode.secretFile"),
    ],
)
def test_a_wrong_configuration_is_reported(tmp_path: Path, text: str, complaint: str) -> None:
    found = complaints(tmp_path, text)
    assert any(complaint in each for each in found), found
    assert not any(SECRET in each for each in found)


def test_the_password_of_an_address_is_not_in_the_message(tmp_path: Path) -> None:
    text = """
global:
  authorization:
    authorizer: default
    claimMapper: default
    jwtKeyProvider: {keySourceURIs: ["https://user:hunter2@issuer.example/jwks.json"]}
"""
    found = str(complaints(tmp_path, text))
    assert "leave them out" in found
    assert "hunter2" not in found
