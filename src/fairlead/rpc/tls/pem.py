"""Reads certificates and keys, and loads them into contexts of Python's `ssl`."""

import os
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairlead.core.errors import FixRequest
from fairlead.settings.static.tls import Pem

PEM_BYTES_MAX: Final = 4 << 20


class BadCertificate(FixRequest):
    """A certificate, key or list of authorities can't be read or used."""


def read_pem(pem: Pem) -> bytes:
    """The text of a certificate or key."""
    if pem.file is None:
        return pem.data
    try:
        with pem.file.open("rb") as opened:
            text = opened.read(PEM_BYTES_MAX + 1)
    except OSError as refused:
        raise BadCertificate(f"{pem.file} can't be read: {refused.strerror}") from None
    if not 0 < len(text) <= PEM_BYTES_MAX:
        raise BadCertificate(f"{pem.file} is empty or larger than {PEM_BYTES_MAX} bytes: it must be PEM")
    return text


def joined(pems: Iterable[Pem]) -> bytes:
    """The texts of several PEM files, joined."""
    return b"\n".join(read_pem(pem) for pem in pems)


def load_chain(context: ssl.SSLContext, certificate: bytes, key: bytes, *, shown: str) -> None:
    """Load a certificate and its key. `ssl` reads only files: both are written to a temporary file that only this user
    can read.
    """
    # `ssl` reads both from one file, so it would not notice if they were swapped.
    for text, mark, part in ((certificate, b"CERTIFICATE-----", "certificate"), (key, b"PRIVATE KEY-----", "key")):
        if mark not in text:
            raise BadCertificate(
                f"certificate and key {shown} can't be used: the {part} is not PEM, or the two are swapped"
            )
    descriptor, name = tempfile.mkstemp(prefix="fairlead-tls-")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(key.rstrip() + b"\n" + certificate)
        # Without a password, `ssl` would ask for one on the terminal.
        context.load_cert_chain(name, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as wrong:
        raise BadCertificate(f"certificate and key {shown} can't be used: {wrong}") from None
    finally:
        Path(name).unlink(missing_ok=True)


def load_authorities(context: ssl.SSLContext, authorities: bytes, *, shown: str) -> None:
    """Load the certificates of authorities."""
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as wrong:
        raise BadCertificate(f"authorities {shown} can't be used: {wrong}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted: give one without a password, in a file that only the server can read")
