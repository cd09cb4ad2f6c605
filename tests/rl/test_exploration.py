import pytest

from collectives.rl.exploration import annealed, apex_epsilon


def test_actors_of_ape_x():
    assert [apex_epsilon(i, 3) for i in range(3)] == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert apex_epsilon(0, 1) == pytest.approx(0.4)
    assert apex_epsilon(2, 5, base=0.5, alpha=2) == pytest.approx(0.25)


def test_annealed():
    epsilon = annealed(1.0, 0.1, 100)
    assert [epsilon(n) for n in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: apex_epsilon(3, 3),
        lambda: apex_epsilon(-1, 3),
        lambda: apex_epsilon(0, 3, base=1.1),
        lambda: annealed(1.1, 0, 5),
        lambda: annealed(1, 0, 0),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError, match=r"is not one of|must be|are in"):
        call()
