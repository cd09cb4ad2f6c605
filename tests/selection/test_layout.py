"""Which entry of a table serves the layout of a communicator."""

from collections import Counter

from tables import entry

from collectives.selection import table as tuning
from collectives.selection.layout import Layout
from collectives.selection.table import Table


def test_the_entry_for_a_layout():
    table = Table([entry(layout=Layout(1, 2)), entry(layout=Layout(1, 8)), entry(layout=Layout(4, 2))], "t.json")
    for layout, found in [
        ((1, 2), (1, 2)), ((1, 3), (1, 2)), ((1, 5), (1, 8)), ((1, 16), (1, 8)), ((4, 2), (4, 2)), ((8, 1), (4, 2)),
        ((3, 3), (4, 2)),
    ]:  # fmt: skip
        assert tuning.nearest(table, Layout(*layout)).layout == Layout(*found), layout
        source = tuning.pick(table, Layout(*layout)).source
        assert source.startswith(f"t.json ({Layout(*found)}")
        assert ("nearest to" in source) == (layout != found)
    for layout in [(1, 1), (1, 17), (9, 2), (4, 5)]:
        assert tuning.pick(table, Layout(*layout)) is None
    assert Layout.of(Counter("abaa")) == Layout(2, 3, 4)
    uneven = entry(layout=Layout(3, 2, 4))
    both = Table([entry(layout=Layout(3, 2)), uneven], "t.json")
    assert tuning.nearest(both, Layout(3, 2, 4)) is uneven
    assert tuning.nearest(both, Layout(3, 2, 6)) is both.entries[0]
    assert str(uneven.layout) == "3 nodes x 2 at most, 4 ranks"
    assert tuning.pick(table, Layout(1, 2)).models == entry().models


def test_what_was_tuned_for_this_machine_comes_before_patterns():
    """In any order; and a pattern for this layout comes before what was tuned on another one."""
    every, machine, here = entry(machine="*", mpi="*"), entry(machine="AMD*"), entry()
    for table in (Table([every, machine, here]), Table([here, machine, every])):
        assert tuning.nearest(table, Layout(1, 2)) is here
        assert tuning.nearest(Table([e for e in table.entries if e is not here]), Layout(1, 2)) is machine
    assert tuning.nearest(Table([entry(layout=Layout(1, 4)), every]), Layout(1, 2)) is every
