"""Dynamic settings of the HTTP API."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Texts

ALLOWED_HOSTS = Setting(
    key="frontend.httpAllowedHosts",
    kind=Texts(items_max=100, characters_max=260),
    default=(),
    reach=Reach.GLOBAL,
    about="Host headers that HTTP requests may have; `*`: any characters. Empty: local names on loopback, else any.",
    deviation="Temporal's server accepts any host by default, which lets a web page reach a server on its visitor's "
    "machine by DNS rebinding. Local names are localhost and IP addresses.",
)
