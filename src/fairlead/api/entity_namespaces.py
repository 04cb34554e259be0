"""Namespace ids of entities: the rows of one archetype have the namespace id `<namespace id>#<archetype>`.

So the ids and lists of entities never mix with the ids and lists of workflows.
"""

from fairlead.core.namespaces import VERSION_MARK, QualifiedNamespaceId


def entity_namespace_id(namespace_id: str, archetype: str) -> str:
    """The namespace id of the rows of one archetype."""
    return str(QualifiedNamespaceId(namespace_id, archetype))


def is_entity(namespace_id: str) -> bool:
    """Whether rows under this namespace id are entities, not workflows."""
    return bool(QualifiedNamespaceId.parse(namespace_id).qualifier)


def base_namespace_id(namespace_id: str) -> str:
    """The id of the namespace, from the namespace id of a workflow or an entity."""
    return namespace_id.partition(VERSION_MARK)[0]
