"""Quotas of the frontend, with the names of Temporal's server, and the fair turns of namespaces."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Float, Int

_RPS_MAX = 10_000_000
_RATIO = Float(0.001, 1000.0)
_NO_LIMIT = "Temporal's default is {}; here a call waits for its namespace's fair turn instead of failing."

RPS = Setting(
    key="frontend.rps",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.GLOBAL,
    about="Calls per second that one host accepts from all namespaces together; 0 for no limit.",
    deviation=_NO_LIMIT.format("2400"),
)
GLOBAL_RPS = Setting(
    key="frontend.globalRPS",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.GLOBAL,
    about="Calls per second that all hosts together accept, in equal parts; above 0 it replaces frontend.rps.",
)
NAMESPACE_RPS = Setting(
    key="frontend.namespaceRPS",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.NAMESPACE,
    about="Calls per second of a namespace that one host accepts; 0 for no limit.",
    deviation=_NO_LIMIT.format("2400"),
)
GLOBAL_NAMESPACE_RPS = Setting(
    key="frontend.globalNamespaceRPS",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.NAMESPACE,
    about="Calls per second of a namespace that all hosts together accept; above 0 it replaces frontend.namespaceRPS.",
)
NAMESPACE_BURST_RATIO = Setting(
    key="frontend.namespaceBurstRatio",
    kind=_RATIO,
    default=2.0,
    reach=Reach.NAMESPACE,
    about="Calls that a namespace may make at once after a pause, as a multiple of its calls per second.",
)
VISIBILITY_RPS = Setting(
    key="frontend.namespaceRPS.visibility",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.NAMESPACE,
    about="Lists and counts per second of a namespace that one host accepts; 0 for no limit.",
    deviation=_NO_LIMIT.format("10, and 100 in its development server"),
)
GLOBAL_VISIBILITY_RPS = Setting(
    key="frontend.globalNamespaceRPS.visibility",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.NAMESPACE,
    about="Lists and counts of a namespace per second, on all hosts together; above 0 it replaces the limit of a host.",
)
VISIBILITY_BURST_RATIO = Setting(
    key="frontend.namespaceBurstRatio.visibility",
    kind=_RATIO,
    default=1.0,
    reach=Reach.NAMESPACE,
    about="Burst of lists and counts of a namespace, as a multiple of their limit per second.",
)
REPLICATED_RPS = Setting(
    key="frontend.rps.namespaceReplicationInducingAPIs",
    kind=Int(0, _RPS_MAX),
    default=20,
    reach=Reach.GLOBAL,
    about="Changes of namespaces per second that one host accepts: each is copied to other clusters; 0 for no limit.",
)
NAMESPACE_REPLICATED_RPS = Setting(
    key="frontend.namespaceRPS.namespaceReplicationInducingAPIs",
    kind=Int(0, _RPS_MAX),
    default=1,
    reach=Reach.NAMESPACE,
    about="Changes per second of one namespace that one host accepts; 0 for no limit.",
)
NAMESPACE_REPLICATED_BURST_RATIO = Setting(
    key="frontend.namespaceBurstRatio.namespaceReplicationInducingAPIs",
    kind=_RATIO,
    default=10.0,
    reach=Reach.NAMESPACE,
    about="Burst of changes of one namespace, as a multiple of their limit per second.",
)
GLOBAL_NAMESPACE_REPLICATED_RPS = Setting(
    key="frontend.globalNamespaceRPS.namespaceReplicationInducingAPIs",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.NAMESPACE,
    about="Changes per second of one namespace, on all hosts together; above 0 it replaces the limit of one host.",
)
GLOBAL_DEPLOYMENT_READ_RPS = Setting(
    key="frontend.globalNamespaceWorkerDeploymentReadRPS",
    kind=Int(0, _RPS_MAX),
    default=50,
    reach=Reach.NAMESPACE,
    about="Descriptions and lists of a namespace's worker deployments per second at all hosts; 0 for no limit.",
)
GLOBAL_DEPLOYMENT_READ_BURST_RATIO = Setting(
    key="frontend.globalNamespaceWorkerDeploymentReadBurstRatio",
    kind=_RATIO,
    default=10.0,
    reach=Reach.NAMESPACE,
    about="Burst of descriptions and lists of worker deployments, as a multiple of their limit per second.",
)
OPERATOR_RPS_RATIO = Setting(
    key="system.operatorRPSRatio",
    kind=Float(0.0, 1.0),
    default=0.2,
    reach=Reach.GLOBAL,
    about="Share of each limit per second that calls with the header `caller-type: operator` have beside all others.",
)
NAMESPACE_COUNT = Setting(
    key="frontend.namespaceCount",
    kind=Int(0, _RPS_MAX),
    default=1200,
    reach=Reach.NAMESPACE,
    about="Open long calls (polls, queries, updates, waits for history) of a namespace per method at one host.",
)
GLOBAL_NAMESPACE_COUNT = Setting(
    key="frontend.globalNamespaceCount",
    kind=Int(0, _RPS_MAX),
    default=0,
    reach=Reach.NAMESPACE,
    about="Open long calls of a namespace per method at all hosts together; above 0 it replaces namespaceCount.",
)
CALLS_AT_ONCE = Setting(
    key="frontend.callsAtOnce",
    kind=Int(1, 1_000_000),
    default=4,
    reach=Reach.GLOBAL,
    about="Calls that one host carries out at once while several namespaces call; others wait for a fair turn.",
    deviation="Fairlead's own.",
)
TASKS_AT_ONCE = Setting(
    key="history.tasksAtOnce",
    kind=Int(1, 1_000_000),
    default=16,
    reach=Reach.GLOBAL,
    about="Transfer and timer tasks that one host runs at once while several namespaces have some; others wait.",
    deviation="Fairlead's own.",
)
MESSAGE_MEMORY = Setting(
    key="frontend.messageMemory",
    kind=Int(64 * 2**20, 2**40),
    default=256 * 2**20,
    reach=Reach.GLOBAL,
    about="Bytes of large requests and unread responses that one host holds; above it, large messages wait.",
    deviation="Fairlead's own.",
)
