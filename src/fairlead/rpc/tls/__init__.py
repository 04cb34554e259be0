"""TLS of a process: contexts for servers and clients by purpose, reread when their files change, and their expiry."""

from fairlead.rpc.tls.client_side import ClientSide
from fairlead.rpc.tls.pem import BadCertificate
from fairlead.rpc.tls.provider import TlsProvider
from fairlead.rpc.tls.server_side import ServerSide

__all__ = ["BadCertificate", "ClientSide", "ServerSide", "TlsProvider"]
