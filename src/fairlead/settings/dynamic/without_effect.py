"""Dynamic settings of Temporal's server that have no effect here, each with the reason.

Files written for Temporal's server can be used unchanged: keys listed here are ignored, and logged in one line when
the server starts. A key that is neither a setting nor listed here is an error.
"""

from fairlead.settings.dynamic import rare_keys

_NO_CALL_LIMIT = "Only the frontend limits calls, see `frontend.namespaceRPS`; connections have fixed limits."
_NO_STORE_LIMIT = "The store has no rate limit: a group commit writes all requests that have arrived."
_ONE_VISIBILITY = "There is one visibility store, written with the history in one transaction."
_NO_ARCHIVAL = "There is no archival; `fairlead export` and the journal keep histories."
_NO_CACHE_LAG = "An operator's change is in force at once on the host that got it, and within seconds on the others."
_OTHER_QUEUES = "History's queues work differently here and need no setting."
_NO_SYSTEM_WORKERS = "There are no system workers: schedules, batches and deletions run inside the history service."
_ALWAYS_ON = "It is always on."
_ALWAYS_REFUSED = "These methods always fail; use Worker Deployments."
_FIXED = "It can't be changed here."
_KEEPALIVE = "Pings are permitted at any time, and the other limits of a connection are fixed."
_DRAIN = "`stop` in the static configuration sets how a server stops."
_NO_LOG_LIMIT = "Repeated log lines have a fixed limit."
_CACHES = "The caches have fixed sizes."
_CLUSTERS = "Replication between clusters uses another protocol here; see `replication.*`."
_INTERNAL = "It concerns a part of Temporal's server that does not exist here."
_CALLBACKS = "The server calls no external callback addresses."
_HEALTH = "A host is healthy while it serves; it counts no errors and latencies for that."
_METRICS = "Logs and metrics have fixed contents; docs/operations.md lists them."
_NOT_HERE = "Fairlead does not have the feature."

_BY_REASON: dict[str, tuple[str, ...]] = {
    _NO_CALL_LIMIT: (
        "frontend.namespaceBurst",
        "frontend.namespaceBurst.visibility",
        "history.rps",
        "history.namespaceRPS",
        "matching.rps",
        *rare_keys.CALL_LIMITS,
    ),
    _NO_STORE_LIMIT: (
        "frontend.persistenceMaxQPS",
        "frontend.persistenceGlobalMaxQPS",
        "frontend.persistenceNamespaceMaxQPS",
        "history.persistenceMaxQPS",
        "history.persistenceGlobalMaxQPS",
        "history.persistenceNamespaceMaxQPS",
        "matching.persistenceMaxQPS",
        "matching.persistenceGlobalMaxQPS",
        "matching.persistenceNamespaceMaxQPS",
        "worker.persistenceMaxQPS",
        "system.visibilityPersistenceMaxReadQPS",
        "system.visibilityPersistenceMaxWriteQPS",
        "system.standardVisibilityPersistenceMaxReadQPS",
        "system.standardVisibilityPersistenceMaxWriteQPS",
        "system.advancedVisibilityPersistenceMaxReadQPS",
        "system.advancedVisibilityPersistenceMaxWriteQPS",
        "system.transactionSizeLimit",
        *rare_keys.STORE_LIMITS,
    ),
    _ONE_VISIBILITY: (
        "system.advancedVisibilityWritingMode",
        "system.secondaryVisibilityWritingMode",
        "system.enableReadVisibilityFromES",
        "system.enableReadFromSecondaryVisibility",
        "system.enableReadFromSecondaryAdvancedVisibility",
        "system.enableWriteToSecondaryAdvancedVisibility",
        "system.visibilityDisableOrderByClause",
        "system.visibilityEnableManualPagination",
        "system.visibilityAllowList",
        "system.suppressErrorSetSystemSearchAttribute",
        "frontend.disableListVisibilityByFilter",
        "frontend.esIndexMaxResultWindow",
        "worker.ESProcessorBulkActions",
        "worker.ESProcessorBulkSize",
        "worker.ESProcessorFlushInterval",
        "worker.ESProcessorNumOfWorkers",
        *rare_keys.VISIBILITY,
    ),
    _NO_ARCHIVAL: (
        "system.historyArchivalState",
        "system.visibilityArchivalState",
        "system.enableReadFromHistoryArchival",
        "system.enableReadFromVisibilityArchival",
        *rare_keys.ARCHIVAL,
    ),
    _NO_CACHE_LAG: (
        "system.forceSearchAttributesCacheRefreshOnRead",
        "system.namespaceCacheRefreshInterval",
        "system.clusterMetadataRefreshInterval",
        "system.refreshNexusEndpointsMinWait",
        *rare_keys.CACHE_LAG,
    ),
    _OTHER_QUEUES: (
        "history.shardUpdateMinInterval",
        "history.timerProcessorMaxTimeShift",
        "history.transferProcessorMaxPollRPS",
        "history.timerProcessorMaxPollRPS",
        "history.visibilityProcessorMaxPollRPS",
        "history.timerTaskBatchSize",
        "history.transferTaskBatchSize",
        "history.visibilityTaskBatchSize",
        "history.acquireShardInterval",
        "history.acquireShardConcurrency",
        "system.enableParentClosePolicyWorker",
        *rare_keys.QUEUES,
    ),
    _NO_SYSTEM_WORKERS: (
        "worker.schedulerNamespaceStartWorkflowRPS",
        "worker.perNamespaceWorkerCount",
        "worker.enableScheduler",
        "worker.batcherRPS",
        "worker.batcherConcurrency",
        "worker.historyScannerEnabled",
        "worker.executionsScannerEnabled",
        "worker.taskQueueScannerEnabled",
        "frontend.enableBatcher",
        "frontend.deleteNamespaceDeleteActivityRPS",
        "frontend.deleteNamespaceConcurrentDeleteExecutionsActivities",
        "frontend.MaxExecutionCountBatchOperationPerNamespace",
        *rare_keys.SYSTEM_WORKERS,
    ),
    _ALWAYS_ON: (
        "frontend.enableUpdateWorkflowExecution",
        "frontend.enableUpdateWorkflowExecutionAsyncAccepted",
        "frontend.enableExecuteMultiOperation",
        "frontend.enableSchedules",
        "frontend.enableTokenNamespaceEnforcement",
        "frontend.WorkerHeartbeatsEnabled",
        "frontend.ListWorkersEnabled",
        "system.enableNexus",
        "system.enableStickyQuery",
        "system.enableDeployments",
        "system.enableDeploymentVersions",
        "matching.enableFairness",
        "matching.useNewMatcher",
        "matching.autoEnableV2",
        "activity.enableStandalone",
        *rare_keys.ALWAYS_ON,
    ),
    _ALWAYS_REFUSED: (
        "frontend.workerVersioningDataAPIs",
        "frontend.workerVersioningRuleAPIs",
        "frontend.workerVersioningWorkflowAPIs",
        "limit.versionCompatibleSetLimitPerQueue",
        "limit.versionBuildIdLimitPerQueue",
        "limit.wv.AssignmentRuleLimitPerQueue",
        "limit.wv.RedirectRuleLimitPerQueue",
        "limit.wv.RedirectRuleMaxUpstreamBuildIDsPerQueue",
        "limit.reachabilityTaskQueueScan",
        "limit.reachabilityQueryBuildIds",
        "limit.taskQueuesPerBuildId",
        "worker.removableBuildIdDurationSinceDefault",
        *rare_keys.OLD_VERSIONING,
    ),
    "The limits on pending activities, child workflows, signals and cancel requests bound the state of a run.": (
        "limit.mutableStateSize.error",
        "limit.mutableStateSize.warn",
    ),
    "Failures of activities that are retried are shortened to 4 KiB without a warning.": (
        "limit.mutableStateActivityFailureSize.warn",
    ),
    "A run keeps no tombstones.": ("limit.mutableStateTombstoneCountLimit",),
    _FIXED: (
        "limit.mutableStateActivityFailureSize.error",
        "limit.workerBuildIdSize",
        "history.longPollExpirationInterval",
        "history.MaxBufferedQueryCount",
        "history.maximumBufferedEventsSizeInBytes",
        "history.maxInFlightUpdatePayloads",
        "history.workflowIdReuseMinimalInterval",
        "history.defaultActivityRetryPolicy",
        "history.defaultWorkflowRetryPolicy",
        "frontend.linkMaxSize",
        "frontend.maskInternalErrorDetails",
        "frontend.maxBadBinaries",
        "frontend.searchAttributesNumberOfKeysLimit",
        "frontend.searchAttributesSizeOfValueLimit",
        "frontend.searchAttributesTotalSizeLimit",
        "system.maxCallbacksPerWorkflow",
        "component.nexusoperations.limit.operation.concurrency",
        "component.nexusoperations.request.timeout",
        *rare_keys.FIXED,
    ),
    "Histories are always sent as they are stored, which costs the least.": ("frontend.sendRawWorkflowHistory",),
    "The server does not look for newer versions.": ("frontend.enableServerVersionCheck",),
    _KEEPALIVE: (
        "frontend.keepAliveMinTime",
        "frontend.keepAlivePermitWithoutStream",
        "frontend.keepAliveMaxConnectionIdle",
        "frontend.keepAliveTime",
        "frontend.keepAliveTimeout",
        *rare_keys.KEEPALIVE,
    ),
    _DRAIN: (
        "frontend.shutdownDrainDuration",
        "frontend.shutdownFailHealthCheckDuration",
        "history.alignMembershipChange",
        "history.shutdownDrainDuration",
        "history.startupMembershipJoinDelay",
        "matching.shutdownDrainDuration",
        "matching.alignMembershipChange",
    ),
    _NO_LOG_LIMIT: (
        "frontend.throttledLogRPS",
        "history.throttledLogRPS",
        "matching.throttledLogRPS",
        "worker.throttledLogRPS",
    ),
    _CACHES: (
        "history.cacheMaxSize",
        "history.hostLevelCacheMaxSize",
        "history.cacheTTL",
        "history.eventsCacheMaxSizeBytes",
        "history.eventsHostLevelCacheMaxSizeBytes",
        "history.enableHostHistoryCache",
        "history.enableHostLevelEventsCache",
        *rare_keys.CACHES,
    ),
    _CLUSTERS: (
        "history.enableReplicationStream",
        "history.ReplicationEnableUpdateWithNewTaskMerge",
        "history.enableTransitionHistory",
        *rare_keys.CLUSTERS,
    ),
    "Use `frontend.redirection` to choose the calls that are sent to the active cluster.": (
        "system.enableNamespaceNotActiveAutoForwarding",
    ),
    _INTERNAL: (
        "history.enableChasm",
        "history.enableWorkflowExecutionTimeoutTimer",
        "matching.deploymentWorkflowVersion",
        "matching.PollerHistoryTTL",
        "matching.wv.VersionDrainageStatusRefreshInterval",
        "matching.wv.VersionDrainageStatusVisibilityGracePeriod",
        "frontend.enableClientVersionCheck",
        "matching.backlogNegligibleAge",
        "matching.priorityLevels",
        "matching.maxWaitForPollerBeforeFwd",
        "matching.minTaskThrottlingBurstSize",
        "matching.queryWorkflowTaskTimeoutLogRate",
        "matching.syncMatchWaitDuration",
        "system.enableRingpopTLS",
        "system.deadlock.DumpGoroutines",
        *rare_keys.INTERNAL,
    ),
    _CALLBACKS: (
        "component.nexusoperations.callback.endpoint.template",
        "nexusoperation.callback.endpoint.template",
        "component.callbacks.allowedAddresses",
        "callback.allowedAddresses",
    ),
    _HEALTH: rare_keys.HEALTH,
    _METRICS: rare_keys.METRICS,
    _NOT_HERE: rare_keys.NOT_HERE,
}

WITHOUT_EFFECT: dict[str, str] = {
    key: reason for reason, keys in _BY_REASON.items() for key in sorted(keys, key=str.lower)
}
