"""Parts of Temporal's API that all services share: errors, ids, tokens, times, namespaces, clusters, list filters."""
