"""Clusters that share namespaces: streams pulled from the others, and what they ask of this one."""
