"""HTTP/1.1 on asyncio: a small server with bounds on sizes, times and connections, for the HTTP API and web pages.

This package loads only messages and addresses. `fairlead.http.server` loads the parser of requests, so import it late:
a development server should be ready first.
"""

from fairlead.http.limits import HttpLimits
from fairlead.http.listening import bound_socket
from fairlead.http.message import HttpFault, Request, Response

__all__ = ["HttpFault", "HttpLimits", "Request", "Response", "bound_socket"]
