"""Dynamic settings of matching, with the names of Cadence and Temporal.

If the two spell a setting differently (task list, task queue), the other spelling is an alias. Settings that neither of
them has say so in `deviation`.
"""

from fairlead.core.balancing import TASKS_MAX, Strategy, WeightedRules
from fairlead.core.fairness import BufferLimits, WeightOverrides
from fairlead.core.fairness.deletes import ACKED_MIN, INTERVAL_S
from fairlead.core.fairness.passes import KEYS_MAX
from fairlead.core.fairness.weights import OVERRIDES_MAX
from fairlead.core.partitions import PARTITIONS_MAX
from fairlead.core.routing import BATCH_SIZE_MAX, GradualChange
from fairlead.core.scaling import ScalerSettings
from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Bool, Choice, Duration, Float, GradualInt, Int, Weights

_OURS = "Fairlead's own."
_RATE_MAX = 1e9
_CONCURRENCY_MAX = 1_000_000
_DAY_S = 86_400.0

# Partitions

NUM_READ_PARTITIONS = Setting(
    key="matching.numTasklistReadPartitions",
    aliases=("matching.numTaskqueueReadPartitions",),
    kind=Int(1, PARTITIONS_MAX),
    default=1,
    reach=Reach.TASK_QUEUE,
    about="Partitions that are polled: initially, or always if the number comes from these settings.",
    deviation="Cadence's default; Temporal's is 4.",
)
NUM_WRITE_PARTITIONS = Setting(
    key="matching.numTasklistWritePartitions",
    aliases=("matching.numTaskqueueWritePartitions",),
    kind=Int(1, PARTITIONS_MAX),
    default=1,
    reach=Reach.TASK_QUEUE,
    about="Partitions that get new tasks: initially, or always as for read partitions; at most the read partitions.",
    deviation="Cadence's default; Temporal's is 4.",
)
ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE = Setting(
    key="matching.enableGetNumberOfPartitionsFromCache",
    kind=Bool(),
    default=True,
    reach=Reach.TASK_QUEUE,
    about="Whether the number of partitions comes from the database (true) or from these settings (false).",
    deviation="Cadence's default is false, since it migrates to the database; here the database is the usual source.",
)
PARTITION_CONFIG_CHECK_INTERVAL = Setting(
    key="matching.partitionConfigCheckInterval",
    kind=Duration(0.01, 3600.0),
    default=10.0,
    reach=Reach.TASK_QUEUE,
    about="How often the root pushes its configuration again to partitions that have not acknowledged it.",
    deviation=_OURS,
)

# The adaptive scaler

_SCALER = ScalerSettings()

ENABLE_ADAPTIVE_SCALER = Setting(
    key="matching.enableAdaptiveScaler",
    kind=Bool(),
    default=False,
    reach=Reach.TASK_QUEUE,
    about="Whether a scaler adapts the number of partitions to the load; operators can't change it meanwhile.",
)
PARTITION_UPSCALE_RPS = Setting(
    key="matching.partitionUpscaleRPS",
    kind=Float(0.001, _RATE_MAX),
    default=_SCALER.upscale_rps,
    reach=Reach.TASK_QUEUE,
    about="New tasks per second for each write partition above which partitions are added.",
)
PARTITION_DOWNSCALE_FACTOR = Setting(
    key="matching.partitionDownscaleFactor",
    kind=Float(0.001, 0.999),
    default=_SCALER.downscale_factor,
    reach=Reach.TASK_QUEUE,
    about="Share of the load threshold of one partition less below which partitions are removed.",
)
PARTITION_UPSCALE_SUSTAINED_DURATION = Setting(
    key="matching.partitionUpscaleSustainedDuration",
    kind=Duration(0.0, _DAY_S),
    default=_SCALER.upscale_sustained_s,
    reach=Reach.TASK_QUEUE,
    about="How long the load must stay above the threshold to add partitions; at least 1.5 times qpsTrackerInterval.",
)
PARTITION_DOWNSCALE_SUSTAINED_DURATION = Setting(
    key="matching.partitionDownscaleSustainedDuration",
    kind=Duration(0.0, _DAY_S),
    default=_SCALER.downscale_sustained_s,
    reach=Reach.TASK_QUEUE,
    about="How long the load must stay below the threshold to remove them; at least 1.5 times qpsTrackerInterval.",
)
ADAPTIVE_SCALER_UPDATE_INTERVAL = Setting(
    key="matching.adaptiveScalerUpdateInterval",
    kind=Duration(0.01, 3600.0),
    default=_SCALER.interval_s,
    reach=Reach.TASK_QUEUE,
    about="How often the scaler reads the load and decides.",
)
QPS_TRACKER_INTERVAL = Setting(
    key="matching.qpsTrackerInterval",
    kind=Duration(0.01, 3600.0),
    default=10.0,
    reach=Reach.TASK_QUEUE,
    about="Length of the time window in which the scaler counts new tasks.",
)
MAXIMUM_WRITE_PARTITIONS = Setting(
    key="matching.taskListMaximumWritePartitions",
    kind=Int(1, PARTITIONS_MAX),
    default=_SCALER.partitions_max,
    reach=Reach.TASK_QUEUE,
    about="Largest number of write partitions that the scaler sets.",
    deviation=_OURS,
)
MINIMUM_WRITE_PARTITIONS = Setting(
    key="matching.taskListMinimumWritePartitions",
    kind=Int(1, PARTITIONS_MAX),
    default=_SCALER.partitions_min,
    reach=Reach.TASK_QUEUE,
    about="Smallest number of write partitions that the scaler sets.",
    not_above=MAXIMUM_WRITE_PARTITIONS,
)

# Forwarding

FORWARDER_MAX_CHILDREN_PER_NODE = Setting(
    key="matching.forwarderMaxChildrenPerNode",
    kind=Int(1, PARTITIONS_MAX),
    default=20,
    reach=Reach.TASK_QUEUE,
    about="Partitions that forward to the same parent: the degree of the tree.",
)
FORWARDER_MAX_OUTSTANDING_POLLS = Setting(
    key="matching.forwarderMaxOutstandingPolls",
    kind=Int(0, 10_000),
    default=1,
    reach=Reach.TASK_QUEUE,
    about="Polls of one partition that wait at its parent at the same time; 0 forwards none.",
)
FORWARDER_MAX_OUTSTANDING_TASKS = Setting(
    key="matching.forwarderMaxOutstandingTasks",
    kind=Int(0, 10_000),
    default=1,
    reach=Reach.TASK_QUEUE,
    about="Tasks that one partition offers to its parent at the same time; 0 forwards none.",
)
FORWARDER_MAX_RATE_PER_SECOND = Setting(
    key="matching.forwarderMaxRatePerSecond",
    kind=Float(0.0, _RATE_MAX),
    default=10.0,
    reach=Reach.TASK_QUEUE,
    about="Tasks per second that a partition offers to its parent.",
)
FORWARDER_MAX_OUTSTANDING_POLLS_DOWN = Setting(
    key="matching.forwarderMaxOutstandingPollsDown",
    kind=Int(0, 100_000),
    default=1_000,
    reach=Reach.TASK_QUEUE,
    about="Idle polls that the root sends down to partitions with a backlog at the same time; 0 sends none.",
    deviation=_OURS,
)
LOCAL_TASK_WAIT_TIME = Setting(
    key="matching.localTaskWaitTime",
    kind=Duration(0.0, 60.0),
    default=0.01,
    reach=Reach.TASK_QUEUE,
    about="How long a new task waits for a poll at its own partition before it is offered to the parent.",
)
LOCAL_POLL_WAIT_TIME = Setting(
    key="matching.localPollWaitTime",
    kind=Duration(0.0, 60.0),
    default=0.01,
    reach=Reach.TASK_QUEUE,
    about="How long a poll waits for a task at its own partition before it is offered to the parent.",
)

# Polls, and the life of a partition in memory

LONG_POLL_EXPIRATION_INTERVAL = Setting(
    key="matching.longPollExpirationInterval",
    kind=Duration(0.01, 300.0),
    default=60.0,
    reach=Reach.TASK_QUEUE,
    about="How long a poll waits for a task before it gets an empty response.",
)
STICKY_POLLER_UNAVAILABLE_WINDOW = Setting(
    key="matching.stickyPollerUnavailableWindow",
    kind=Duration(0.01, 3600.0),
    default=10.0,
    reach=Reach.TASK_QUEUE,
    about="Time without a poll of its sticky task queue after which a worker's tasks go to the normal task queue.",
    deviation="A constant in Temporal.",
)
MAX_TASK_QUEUE_IDLE_TIME = Setting(
    key="matching.maxTaskQueueIdleTime",
    aliases=("matching.maxTasklistIdleTime",),
    kind=Duration(0.1, _DAY_S),
    default=300.0,
    reach=Reach.TASK_QUEUE,
    about="Time without adds and polls after which a partition is unloaded.",
)
MEMBERSHIP_UNLOAD_DELAY = Setting(
    key="matching.membershipUnloadDelay",
    kind=Duration(0.0, 60.0),
    default=0.5,
    reach=Reach.GLOBAL,
    about="How long a host waits after a change of the ring before it unloads partitions that it no longer owns.",
)

# The backlog

_BUFFER = BufferLimits()

GET_TASKS_BATCH_SIZE = Setting(
    key="matching.getTasksBatchSize",
    kind=Int(2, 100_000),
    default=_BUFFER.batch_size,
    reach=Reach.TASK_QUEUE,
    about="Maximum number of backlog tasks in memory, and of tasks that one read gets.",
)
GET_TASKS_RELOAD_AT = Setting(
    key="matching.getTasksReloadAt",
    kind=Int(0, 99_999),
    default=_BUFFER.reload_at,
    reach=Reach.TASK_QUEUE,
    about="Tasks left in memory at which more are read; lowered to the batch size less one if above it.",
)
BACKLOG_PARKED_TASKS_MAX = Setting(
    key="matching.backlogParkedTasksMax",
    kind=Int(0, 1_000_000),
    default=_BUFFER.parked_max,
    reach=Reach.TASK_QUEUE,
    about="Further tasks held in memory, in place of tasks whose fairness key is limited by its rate.",
    deviation=_OURS,
)
BACKLOG_EVICTED_ACKS_MAX = Setting(
    key="matching.backlogEvictedAcksMax",
    kind=Int(0, 1_000_000),
    default=_BUFFER.evicted_acks_max,
    reach=Reach.TASK_QUEUE,
    about="Remembered acks of tasks that are no longer in memory; if it is too low, some tasks are dispatched twice.",
    deviation="A constant in Temporal.",
)
OUTSTANDING_TASK_APPENDS_THRESHOLD = Setting(
    key="matching.outstandingTaskAppendsThreshold",
    kind=Int(1, 100_000),
    default=2_000,
    reach=Reach.TASK_QUEUE,
    about="Tasks of a partition that wait to be written; further adds fail with ResourceExhausted.",
    deviation="250 in Cadence and Temporal. Group commits are cheap only with about 1,000 tasks in flight.",
)
MAX_TASK_BATCH_SIZE = Setting(
    key="matching.maxTaskBatchSize",
    kind=Int(1, 10_000),
    default=100,
    reach=Reach.TASK_QUEUE,
    about="Tasks written in one append.",
)
MAX_TASK_DELETE_BATCH_SIZE = Setting(
    key="matching.maxTaskDeleteBatchSize",
    kind=Int(1, 100_000),
    default=ACKED_MIN,
    reach=Reach.TASK_QUEUE,
    about="Number of dispatched tasks at which they are deleted.",
)
TASK_DELETE_INTERVAL = Setting(
    key="matching.taskDeleteInterval",
    kind=Duration(0.01, 3600.0),
    default=INTERVAL_S,
    reach=Reach.TASK_QUEUE,
    about="Longest time until dispatched tasks are deleted.",
)
UPDATE_ACK_INTERVAL = Setting(
    key="matching.updateAckInterval",
    kind=Duration(0.01, 3600.0),
    default=60.0,
    reach=Reach.TASK_QUEUE,
    about="How often the ack level is saved; after a crash, tasks dispatched since then may be dispatched again.",
)

# Fairness and rates

FAIRNESS_KEY_WEIGHTS = Setting(
    key="matching.fairnessKeyWeights",
    kind=Weights(),
    default=WeightOverrides(),
    reach=Reach.TASK_QUEUE,
    about="Weights of fairness keys; they override the weights in tasks.",
    deviation="Fairlead's own. In Temporal only a call sets them.",
)
MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES = Setting(
    key="matching.maxFairnessKeyWeightOverrides",
    kind=Int(0, OVERRIDES_MAX),
    default=OVERRIDES_MAX,
    reach=Reach.TASK_QUEUE,
    about="Weights of fairness keys that calls can set for one task queue.",
)
FAIRNESS_COUNTER_KEYS_MAX = Setting(
    key="matching.fairnessCounterKeysMax",
    kind=Int(1, 10_000_000),
    default=KEYS_MAX,
    reach=Reach.TASK_QUEUE,
    about="Fairness keys of a backlog that are counted exactly; further ones share a sketch.",
    deviation="A constant in Temporal, of 100.",
)
OVERRIDE_TASK_QUEUE_RPS = Setting(
    key="matching.overrideTaskListRps",
    kind=Float(0.0, _RATE_MAX),
    default=0.0,
    reach=Reach.TASK_QUEUE,
    about="Tasks per second that a task queue dispatches in total; overrides the workers' limit. 0: no limit.",
)
FAIRNESS_KEY_RPS = Setting(
    key="matching.fairnessKeyRps",
    kind=Float(0.0, _RATE_MAX),
    default=0.0,
    reach=Reach.TASK_QUEUE,
    about="Tasks per second dispatched for a fairness key of weight 1; others by their weight. 0: no limit.",
    deviation="Fairlead's own. In Temporal only a call sets it.",
)
FAIRNESS_KEY_CONCURRENCY = Setting(
    key="matching.fairnessKeyConcurrency",
    kind=Int(0, _CONCURRENCY_MAX),
    default=0,
    reach=Reach.TASK_QUEUE,
    about="Activities of a fairness key that run at once in a task queue, over all partitions. 0: no limit.",
    deviation="Fairlead's own. Temporal has no such limit.",
)
TASK_QUEUE_CONCURRENCY = Setting(
    key="matching.taskQueueConcurrency",
    kind=Int(0, _CONCURRENCY_MAX),
    default=0,
    reach=Reach.TASK_QUEUE,
    about="Activities of a task queue that run at once, over all partitions and fairness keys. 0: no limit.",
    deviation="Fairlead's own. Temporal has no such limit.",
)

# Balancing and routing

_WEIGHTED = WeightedRules()

TASKLIST_LOAD_BALANCER_STRATEGY = Setting(
    key="system.tasklistLoadBalancerStrategy",
    kind=Choice(Strategy),
    default=Strategy.WEIGHTED,
    reach=Reach.TASK_QUEUE,
    about="Strategy that selects the partition for a task or a poll.",
)
WEIGHTED_BACKLOG_THRESHOLD = Setting(
    key="matching.weightedBacklogThreshold",
    kind=Float(0.0, TASKS_MAX),
    default=_WEIGHTED.tasks_threshold,
    reach=Reach.GLOBAL,
    about="Tasks that some partition must exceed for selection by weight; otherwise selection is round-robin.",
    deviation="A constant in Cadence.",
)
WEIGHTED_FLOOR_SHARE = Setting(
    key="matching.weightedFloorShare",
    kind=Float(0.0, 1.0),
    default=_WEIGHTED.floor_share,
    reach=Reach.GLOBAL,
    about="Share of weighted selections for partitions without a waiting poll; 0 selects by backlog alone.",
    deviation=_OURS,
)
WEIGHTED_REPORT_HALF_LIFE = Setting(
    key="matching.weightedReportHalfLife",
    kind=Duration(0.1, _DAY_S),
    default=_WEIGHTED.half_life_s,
    reach=Reach.GLOBAL,
    about="Time after which a partition's report of its backlog counts half. Choose at least the time of a long poll.",
    deviation=_OURS,
)
SPREAD_ROUTING_BATCH_SIZE: Setting[int | GradualChange[int]] = Setting(
    key="matching.spreadRoutingBatchSize",
    kind=GradualInt(0, BATCH_SIZE_MAX),
    default=0,
    reach=Reach.GLOBAL,
    about="Partitions of a batch that are placed on different hosts; 0 places each alone. Change it gradually.",
)
