"""Claims of client certificates: a name counts only with the authority that it belongs to."""

import ssl
from pathlib import Path

import pytest

from fairlead.authorization.certificates import REFRESH_S, CertificateClaims
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.tls import BadCertificate
from fairlead.rpc.trust import fingerprints_of
from fairlead.settings.static.authorization import CertificateGrant
from fairlead.settings.static.tls import Pem
from tests.security.certificates import Authority

ADMIN = (("temporal-system", "admin"),)


def certificate(*authorities: str, is_of_default: bool = True) -> PeerCertificate:
    return PeerCertificate("CN=ops.example", "ops.example", (), authorities, is_of_default)


def test_a_grant_without_authorities_is_for_those_that_count_for_all_host_names() -> None:
    claims = CertificateClaims([CertificateGrant("ops.example", ADMIN)])
    assert claims.claims(certificate("aa")) is not None
    # A tenant with an authority of its own has signed itself the name of an operator.
    assert claims.claims(certificate("bb", is_of_default=False)) is None


def test_a_grant_with_authorities_does_not_hold_for_certificates_of_others() -> None:
    claims = CertificateClaims([CertificateGrant("ops.example", ADMIN, authorities=("aa", "cc"))])
    assert claims.claims(certificate("aa", is_of_default=False)) is not None
    assert claims.claims(certificate("zz", "cc")) is not None
    assert claims.claims(certificate("bb")) is None
    assert claims.claims(certificate()) is None


def test_another_name_of_the_certificate_counts_if_the_first_is_for_another_authority() -> None:
    grants = [
        CertificateGrant("ops.example", ADMIN, authorities=("aa",)),
        CertificateGrant("shop.example", (("orders", "write"),)),
    ]
    both = PeerCertificate("CN=ops.example", "ops.example", ("shop.example",), ("bb",))
    found = CertificateClaims(grants).claims(both)
    assert found is not None
    assert found.subject == "shop.example"


def test_the_file_of_an_authority_is_read_again(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    file = tmp_path / "ops-ca.pem"
    file.write_bytes(first.certificate.read_bytes())
    now_s = 0.0
    claims = CertificateClaims(
        [CertificateGrant("ops.example", ADMIN, authority_files=(Pem(file),))], clock=lambda: now_s
    )
    of_first, of_second = (certificate(*fingerprints_of(each.certificate.read_bytes())) for each in (first, second))
    assert claims.claims(of_first) is not None
    assert claims.claims(of_second) is None
    file.write_bytes(second.certificate.read_bytes())
    now_s += REFRESH_S
    assert claims.claims(of_first) is None
    assert claims.claims(of_second) is not None
    # The last good authorities stay.
    file.write_text("nonsense")
    now_s += REFRESH_S
    assert claims.claims(of_second) is not None
    for content in ("nonsense", ""):
        file.write_text(content)
        with pytest.raises(BadCertificate, match=r"ops-ca\.pem"):
            CertificateClaims([CertificateGrant("ops.example", ADMIN, authority_files=(Pem(file),))])


def test_a_fingerprint_is_that_of_openssl(tmp_path: Path) -> None:
    import hashlib  # noqa: PLC0415

    text = Authority(tmp_path).certificate.read_text()
    assert fingerprints_of(text.encode()) == {hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()}
