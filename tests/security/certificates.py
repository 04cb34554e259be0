"""A certificate authority for tests."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} of a test")])
        self.certificate = folder / f"{name}.pem"
        self.renew()

    def renew(self) -> None:
        """Write another certificate of the same authority, with the same key."""
        made = (
            _builder(self._name, self._name, self._key.public_key(), days=30.0)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
        )
        self.certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, file: str = "", days: float = 30.0) -> Issued:
        """A certificate for a host or a client; all are valid for 127.0.0.1 and localhost, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(name), x509.DNSName("localhost")]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        # Python 3.13 verifies strictly: a certificate must name the key of its authority.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            _builder(subject, self._name, key.public_key(), days=days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(authority, critical=False)
        )
        issued = Issued(self._folder / f"{file or name}.pem", self._folder / f"{file or name}.key")
        issued.certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued


_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
