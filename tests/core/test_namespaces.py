"""Namespace names: the name of an id, and the form in which users see an id."""

from fairlead.core.namespaces import NamespaceNames, QualifiedNamespaceId, shown_namespace, split_version


def test_an_id_without_a_name_is_shown_as_itself() -> None:
    names = NamespaceNames()
    assert names.find("id-1") is None
    assert names.shown("id-1") == "id-1"


def test_the_task_queues_of_a_worker_version_are_shown_by_name_and_version() -> None:
    names = NamespaceNames()
    names.put("id-1", "orders")
    assert names.shown("id-1") == "orders"
    assert names.shown("id-1#my%20app:v%3A1") == "orders (version my app:v:1)"
    assert split_version("id-1#my%20app:v%3A1") == ("id-1", "my app:v:1")
    assert shown_namespace("orders", "") == "orders"


def test_a_new_namespace_can_take_the_name_of_a_deleted_one() -> None:
    changes: list[tuple[str, str | None, str | None]] = []
    names = NamespaceNames()
    names.put("old", "orders")
    names.on_change(lambda *change: changes.append(change))
    names.put("new", "orders")
    assert (names.find("old"), names.find("new")) == (None, "orders")
    names.put("old", "orders-deleted-old")
    assert names.find("old") == "orders-deleted-old"
    names.drop("old")
    assert names.find("old") is None
    assert changes == [
        ("old", "orders", None),
        ("new", None, "orders"),
        ("old", None, "orders-deleted-old"),
        ("old", "orders-deleted-old", None),
    ]


def test_all_names_can_be_replaced_at_once_even_if_two_namespaces_swap_theirs() -> None:
    names = NamespaceNames()
    names.replace({"a": "one", "b": "two", "c": "three"})
    names.replace({"a": "two", "b": "one"})
    assert [names.find(each) for each in ("a", "b", "c")] == ["two", "one", None]


def test_the_number_of_kept_names_is_bounded() -> None:
    names = NamespaceNames(names_max=2)
    for number in range(5):
        names.put(f"id-{number}", f"name-{number}")
    assert len(names) == 2
    assert names.find("id-4") == "name-4"
    assert names.find("id-0") is None


def test_a_qualified_namespace_id_is_the_same_after_text() -> None:
    for each in (QualifiedNamespaceId("n"), QualifiedNamespaceId("n", "schedule")):
        assert QualifiedNamespaceId.parse(str(each)) == each
    version = QualifiedNamespaceId.of_version("n", deployment="a#b", build_id="1:2")
    assert str(version) == "n#a%23b:1%3A2"
    assert QualifiedNamespaceId.parse(str(version)) == version
