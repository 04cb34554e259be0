"""Advice for failed TLS handshakes, by OpenSSL's reason in the message of the failure."""

from typing import Final

# The first reason that occurs in a message gives the advice: more specific ones come first.
_HINTS: Final = {
    "Hostname mismatch": "the server's certificate has another name: connect to that name, or give --tls-server-name",
    "IP address mismatch": "the server's certificate has another name: connect to that name, or give --tls-server-name",
    "certificate has expired": "the server's certificate, or that of its authority, has expired",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is from an unknown authority: give --tls-ca-path",
    "CERTIFICATE_REQUIRED": "the server requires a certificate: give --tls-cert-path and --tls-key-path",
    "ALERT_UNKNOWN_CA": "the server does not trust the authority of the certificate of --tls-cert-path",
    "ALERT_BAD_CERTIFICATE": "the server refuses the certificate of --tls-cert-path",
    "ALERT_CERTIFICATE_EXPIRED": "the certificate of --tls-cert-path has expired",
    "ALERT_HANDSHAKE_FAILURE": "the server refuses the connection: it may require --tls-cert-path and --tls-key-path",
    "WRONG_VERSION_NUMBER": "the server does not use TLS on this port: leave out --tls and its options",
    "RECORD_LAYER_FAILURE": "the server does not use TLS on this port: leave out --tls and its options",
}


def handshake_hint(message: str) -> str | None:
    """Return what to do about a failed handshake; None if the message has no such failure."""
    return next((hint for reason, hint in _HINTS.items() if reason.lower() in message.lower()), None)
