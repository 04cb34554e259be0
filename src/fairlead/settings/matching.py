"""The dynamic settings of matching, under the names that Cadence and Temporal give them.

Where the two spell one setting differently, or call a task list a task queue, the other spelling is an alias. Settings
that neither has, since they have no such thing, say so in `deviation`.
"""

from fairlead.core.balancing import TASKS_MAX, Strategy, WeightedRules
from fairlead.core.fairness import BufferLimits, WeightOverrides
from fairlead.core.fairness.deletes import ACKED_MIN, INTERVAL_S
from fairlead.core.fairness.passes import KEYS_MAX
from fairlead.core.fairness.weights import OVERRIDES_MAX
from fairlead.core.partitions import PARTITIONS_MAX
from fairlead.core.routing import BATCH_SIZE_MAX, GradualChange
from fairlead.core.scaling import ScalerSettings
from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Bool, Choice, Duration, Float, GradualInt, Int, Weights

_OURS = "Fairlead's own."
_RATE_MAX = 1e9
_DAY_S = 86_400.0

# Partitions

NUM_READ_PARTITIONS = Setting(
    key="matching.numTasklistReadPartitions",
    aliases=("matching.numTaskqueueReadPartitions",),
    kind=Int(1, PARTITIONS_MAX),
    default=1,
    reach=Reach.TASK_LIST,
    about="Partitions that are polled, while the database holds no count or is not asked for one.",
    deviation="Cadence's default; Temporal's is 4.",
)
NUM_WRITE_PARTITIONS = Setting(
    key="matching.numTasklistWritePartitions",
    aliases=("matching.numTaskqueueWritePartitions",),
    kind=Int(1, PARTITIONS_MAX),
    default=1,
    reach=Reach.TASK_LIST,
    about="Partitions that take new tasks, likewise. Where it exceeds the read partitions, their number is used.",
    deviation="Cadence's default; Temporal's is 4.",
)
ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE = Setting(
    key="matching.enableGetNumberOfPartitionsFromCache",
    kind=Bool(),
    default=True,
    reach=Reach.TASK_LIST,
    about="Whether the number of partitions is what the database says, or what these settings say.",
    deviation="Cadence's default is false: there it is a migration, here the database is where the count lives.",
)
PARTITION_CONFIG_CHECK_INTERVAL = Setting(
    key="matching.partitionConfigCheckInterval",
    kind=Duration(0.01, 3600.0),
    default=10.0,
    reach=Reach.TASK_LIST,
    about="How often the root looks for partitions that have not acknowledged its configuration, and pushes it again.",
    deviation=_OURS,
)

# The adaptive scaler

_SCALER = ScalerSettings()

ENABLE_ADAPTIVE_SCALER = Setting(
    key="matching.enableAdaptiveScaler",
    kind=Bool(),
    default=False,
    reach=Reach.TASK_LIST,
    about="Whether the number of partitions follows the load. While it does, it can't be changed by hand.",
)
PARTITION_UPSCALE_RPS = Setting(
    key="matching.partitionUpscaleRPS",
    kind=Float(0.001, _RATE_MAX),
    default=_SCALER.upscale_rps,
    reach=Reach.TASK_LIST,
    about="New tasks a second for each write partition above which partitions are added.",
)
PARTITION_DOWNSCALE_FACTOR = Setting(
    key="matching.partitionDownscaleFactor",
    kind=Float(0.001, 0.999),
    default=_SCALER.downscale_factor,
    reach=Reach.TASK_LIST,
    about="Partitions are taken away below this share of the load that one partition less would be full with.",
)
PARTITION_UPSCALE_SUSTAINED_DURATION = Setting(
    key="matching.partitionUpscaleSustainedDuration",
    kind=Duration(0.0, _DAY_S),
    default=_SCALER.upscale_sustained_s,
    reach=Reach.TASK_LIST,
    about="How long the load must stay above the threshold to add partitions; at least 1.5 times qpsTrackerInterval.",
)
PARTITION_DOWNSCALE_SUSTAINED_DURATION = Setting(
    key="matching.partitionDownscaleSustainedDuration",
    kind=Duration(0.0, _DAY_S),
    default=_SCALER.downscale_sustained_s,
    reach=Reach.TASK_LIST,
    about="Likewise, below the threshold before partitions are taken away.",
)
ADAPTIVE_SCALER_UPDATE_INTERVAL = Setting(
    key="matching.adaptiveScalerUpdateInterval",
    kind=Duration(0.01, 3600.0),
    default=_SCALER.interval_s,
    reach=Reach.TASK_LIST,
    about="How often the scaler looks at the load and decides.",
)
QPS_TRACKER_INTERVAL = Setting(
    key="matching.qpsTrackerInterval",
    kind=Duration(0.01, 3600.0),
    default=10.0,
    reach=Reach.TASK_LIST,
    about="Over how long a time the arrival of tasks is counted for the scaler.",
)
MAXIMUM_WRITE_PARTITIONS = Setting(
    key="matching.taskListMaximumWritePartitions",
    kind=Int(1, PARTITIONS_MAX),
    default=_SCALER.partitions_max,
    reach=Reach.TASK_LIST,
    about="The scaler makes no more partitions than this.",
    deviation=_OURS,
)
MINIMUM_WRITE_PARTITIONS = Setting(
    key="matching.taskListMinimumWritePartitions",
    kind=Int(1, PARTITIONS_MAX),
    default=_SCALER.partitions_min,
    reach=Reach.TASK_LIST,
    about="The scaler leaves no fewer partitions than this.",
    not_above=MAXIMUM_WRITE_PARTITIONS,
)

# Forwarding

FORWARDER_MAX_CHILDREN_PER_NODE = Setting(
    key="matching.forwarderMaxChildrenPerNode",
    kind=Int(1, PARTITIONS_MAX),
    default=20,
    reach=Reach.TASK_LIST,
    about="How many partitions forward to the same parent: the degree of the tree.",
)
FORWARDER_MAX_OUTSTANDING_POLLS = Setting(
    key="matching.forwarderMaxOutstandingPolls",
    kind=Int(0, 10_000),
    default=1,
    reach=Reach.TASK_LIST,
    about="Polls that a partition may have waiting at its parent at a time; 0 forwards none.",
)
FORWARDER_MAX_OUTSTANDING_TASKS = Setting(
    key="matching.forwarderMaxOutstandingTasks",
    kind=Int(0, 10_000),
    default=1,
    reach=Reach.TASK_LIST,
    about="Tasks that a partition may be offering to its parent at a time; 0 forwards none.",
)
FORWARDER_MAX_RATE_PER_SECOND = Setting(
    key="matching.forwarderMaxRatePerSecond",
    kind=Float(0.0, _RATE_MAX),
    default=10.0,
    reach=Reach.TASK_LIST,
    about="Tasks a second that a partition offers to its parent at most.",
)
FORWARDER_MAX_OUTSTANDING_POLLS_DOWN = Setting(
    key="matching.forwarderMaxOutstandingPollsDown",
    kind=Int(0, 100_000),
    default=1_000,
    reach=Reach.TASK_LIST,
    about="Idle polls that the root may have sent down to partitions with a backlog; 0 sends none.",
    deviation=_OURS,
)
LOCAL_TASK_WAIT_TIME = Setting(
    key="matching.localTaskWaitTime",
    kind=Duration(0.0, 60.0),
    default=0.01,
    reach=Reach.TASK_LIST,
    about="How long a new task waits for a poll at its own partition before it is offered to the parent.",
)
LOCAL_POLL_WAIT_TIME = Setting(
    key="matching.localPollWaitTime",
    kind=Duration(0.0, 60.0),
    default=0.01,
    reach=Reach.TASK_LIST,
    about="How long a poll waits for a task at its own partition before it is offered to the parent.",
)

# Polls, and the life of a partition in memory

LONG_POLL_EXPIRATION_INTERVAL = Setting(
    key="matching.longPollExpirationInterval",
    kind=Duration(0.01, 300.0),
    default=60.0,
    reach=Reach.TASK_LIST,
    about="How long a poll waits for a task before it is answered empty.",
)
STICKY_POLLER_UNAVAILABLE_WINDOW = Setting(
    key="matching.stickyPollerUnavailableWindow",
    kind=Duration(0.01, 3600.0),
    default=10.0,
    reach=Reach.TASK_LIST,
    about="A worker that has not polled its own task list for this long gets none there: tasks go to the normal one.",
    deviation="A constant in Temporal.",
)
MAX_TASK_QUEUE_IDLE_TIME = Setting(
    key="matching.maxTaskQueueIdleTime",
    aliases=("matching.maxTasklistIdleTime",),
    kind=Duration(0.1, _DAY_S),
    default=300.0,
    reach=Reach.TASK_LIST,
    about="A partition that nobody added to or polled for this long is unloaded.",
)
MEMBERSHIP_UNLOAD_DELAY = Setting(
    key="matching.membershipUnloadDelay",
    kind=Duration(0.0, 60.0),
    default=0.5,
    reach=Reach.GLOBAL,
    about="How long after the hosts have changed a host waits before it unloads what it no longer owns.",
)

# The backlog

_BUFFER = BufferLimits()

GET_TASKS_BATCH_SIZE = Setting(
    key="matching.getTasksBatchSize",
    kind=Int(2, 100_000),
    default=_BUFFER.batch_size,
    reach=Reach.TASK_LIST,
    about="Tasks of a backlog that are in memory at most, and so how many are read at once.",
)
GET_TASKS_RELOAD_AT = Setting(
    key="matching.getTasksReloadAt",
    kind=Int(0, 99_999),
    default=_BUFFER.reload_at,
    reach=Reach.TASK_LIST,
    about="More tasks are read when no more than this are left in memory; at most the batch size less one counts.",
)
BACKLOG_PARKED_TASKS_MAX = Setting(
    key="matching.backlogParkedTasksMax",
    kind=Int(0, 1_000_000),
    default=_BUFFER.parked_max,
    reach=Reach.TASK_LIST,
    about="Tasks in memory beyond the batch at most, in place of those whose fairness key is held back by its rate.",
    deviation=_OURS,
)
BACKLOG_EVICTED_ACKS_MAX = Setting(
    key="matching.backlogEvictedAcksMax",
    kind=Int(0, 1_000_000),
    default=_BUFFER.evicted_acks_max,
    reach=Reach.TASK_LIST,
    about="Acks that are remembered of tasks no longer in memory; with too few, some tasks are dispatched twice.",
    deviation="A constant in Temporal.",
)
OUTSTANDING_TASK_APPENDS_THRESHOLD = Setting(
    key="matching.outstandingTaskAppendsThreshold",
    kind=Int(1, 100_000),
    default=2_000,
    reach=Reach.TASK_LIST,
    about="Tasks of a partition that may wait to be written; the next is refused with ResourceExhausted.",
    deviation="250 in Cadence and Temporal: too few for 1,000 in flight, which is what makes a group commit cheap.",
)
MAX_TASK_BATCH_SIZE = Setting(
    key="matching.maxTaskBatchSize",
    kind=Int(1, 10_000),
    default=100,
    reach=Reach.TASK_LIST,
    about="Tasks that are written in one append at most.",
)
MAX_TASK_DELETE_BATCH_SIZE = Setting(
    key="matching.maxTaskDeleteBatchSize",
    kind=Int(1, 100_000),
    default=ACKED_MIN,
    reach=Reach.TASK_LIST,
    about="Dispatched tasks are deleted when there are this many of them.",
)
TASK_DELETE_INTERVAL = Setting(
    key="matching.taskDeleteInterval",
    kind=Duration(0.01, 3600.0),
    default=INTERVAL_S,
    reach=Reach.TASK_LIST,
    about="Dispatched tasks are deleted after this time at the latest.",
)
UPDATE_ACK_INTERVAL = Setting(
    key="matching.updateAckInterval",
    kind=Duration(0.01, 3600.0),
    default=60.0,
    reach=Reach.TASK_LIST,
    about="How often the ack level is saved; what was dispatched since may be dispatched again after a crash.",
)

# Fairness and rates

FAIRNESS_KEY_WEIGHTS = Setting(
    key="matching.fairnessKeyWeights",
    kind=Weights(),
    default=WeightOverrides(),
    reach=Reach.TASK_LIST,
    about="Weights of fairness keys, which come before the weights that tasks carry.",
    deviation="Fairlead's own. In Temporal only a call sets them.",
)
MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES = Setting(
    key="matching.maxFairnessKeyWeightOverrides",
    kind=Int(0, OVERRIDES_MAX),
    default=OVERRIDES_MAX,
    reach=Reach.TASK_LIST,
    about="Weights of fairness keys that calls may set for one task list.",
)
FAIRNESS_COUNTER_KEYS_MAX = Setting(
    key="matching.fairnessCounterKeysMax",
    kind=Int(1, 10_000_000),
    default=KEYS_MAX,
    reach=Reach.TASK_LIST,
    about="Fairness keys in a backlog up to which each is counted exactly; those above share a sketch.",
    deviation="A constant in Temporal, of 100.",
)
OVERRIDE_TASK_LIST_RPS = Setting(
    key="matching.overrideTaskListRps",
    kind=Float(0.0, _RATE_MAX),
    default=0.0,
    reach=Reach.TASK_LIST,
    about="Tasks a second that a task list dispatches at most, over all partitions, whatever workers ask; 0: no limit.",
)
FAIRNESS_KEY_RPS = Setting(
    key="matching.fairnessKeyRps",
    kind=Float(0.0, _RATE_MAX),
    default=0.0,
    reach=Reach.TASK_LIST,
    about="Tasks a second that a fairness key of weight 1 gets at most, others by their weight; 0: no limit.",
    deviation="Fairlead's own. In Temporal only a call sets it.",
)

# Balancing and routing

_WEIGHTED = WeightedRules()

TASKLIST_LOAD_BALANCER_STRATEGY = Setting(
    key="system.tasklistLoadBalancerStrategy",
    kind=Choice(Strategy),
    default=Strategy.WEIGHTED,
    reach=Reach.TASK_LIST,
    about="How a partition is selected for a task or a poll.",
)
WEIGHTED_BACKLOG_THRESHOLD = Setting(
    key="matching.weightedBacklogThreshold",
    kind=Float(0.0, TASKS_MAX),
    default=_WEIGHTED.tasks_threshold,
    reach=Reach.GLOBAL,
    about="Some partition must hold more tasks than this for selection by weight; else partitions take turns.",
    deviation="A constant in Cadence.",
)
WEIGHTED_FLOOR_SHARE = Setting(
    key="matching.weightedFloorShare",
    kind=Float(0.001, 1.0),
    default=_WEIGHTED.floor_share,
    reach=Reach.GLOBAL,
    about="Share of weighted selections that goes to partitions where no poll waits, so that none starves.",
    deviation=_OURS,
)
WEIGHTED_REPORT_HALF_LIFE = Setting(
    key="matching.weightedReportHalfLife",
    kind=Duration(0.1, _DAY_S),
    default=_WEIGHTED.half_life_s,
    reach=Reach.GLOBAL,
    about="After this time a partition's report of its backlog counts half. Not less than a long poll lasts.",
    deviation=_OURS,
)
SPREAD_ROUTING_BATCH_SIZE: Setting[int | GradualChange[int]] = Setting(
    key="matching.spreadRoutingBatchSize",
    kind=GradualInt(0, BATCH_SIZE_MAX),
    default=0,
    reach=Reach.GLOBAL,
    about="Partitions of a batch that are placed on different hosts; 0 places each on its own. Change it gradually.",
)
