from fairlead.core.versions import BranchTree, VersionHistory, draw_tree


def tree_of(*branches: list[tuple[int, int]]) -> BranchTree:
    return BranchTree.restore([VersionHistory.from_pairs(branch) for branch in branches])


def test_a_single_branch_is_drawn_as_one_line() -> None:
    assert draw_tree(tree_of([(1, 1), (3, 2), (9, 11)])) == ("1 v1, 2-3 v2, 4-9 v11  <- current",)


def test_forks_of_forks_are_indented_and_the_order_of_storage_does_not_matter() -> None:
    branches = [
        [(2, 1), (6, 2)],
        [(2, 1), (4, 2), (5, 3)],
        [(2, 1), (4, 2), (6, 11), (8, 12)],
        [(2, 1), (4, 2), (9, 11)],
        [(1, 1), (3, 13)],
    ]
    drawing = (
        "1 v1",
        "├─ 2 v1, 3-4 v2",
        "│  ├─ 5-6 v2",
        "│  ├─ 5 v3",
        "│  └─ 5-6 v11",
        "│     ├─ 7-9 v11",
        "│     └─ 7-8 v12",
        "└─ 2-3 v13  <- current",
    )
    assert draw_tree(tree_of(*branches)) == drawing
    assert draw_tree(tree_of(*reversed(branches))) == drawing


def test_a_tree_without_branches_has_no_drawing() -> None:
    assert draw_tree(BranchTree()) == ()
