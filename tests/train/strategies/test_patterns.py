"""What strategies say of who talks to whom: it is consistent, and it is what they do."""

import json

import pytest
from jobs import mpiexec

from collectives import train
from collectives.train.cli.choice import Choice
from collectives.train.strategies import graphs
from collectives.train.strategies.pattern import Ask, Meet, Post, Receive, Send
from collectives.train.strategies.registry import STRATEGIES

STEPS = 24
CHOICES = [
    *(name for name in STRATEGIES if name != "ssp"),
    "ssp:staleness=3",
    "ssp:staleness=0:servers=2",
    "parameter_server:servers=2:beside=true",
    "local_sgd:every=3:start=4:stop=11",
    "local_sgd:every=2:master=1",
    "neighbor_averaging:graph=one_peer_exponential",
    "push_sum:graph=torus",
    "ad_psgd:graph=complete",
]


@pytest.mark.parametrize("text", CHOICES)
@pytest.mark.parametrize("p", [3, 4, 7])
def test_what_is_sent_is_received(text, p):
    pattern = Choice.parse(text).pattern(p)
    workers = pattern.workers(p)
    assert workers == [rank for rank in range(p) if pattern.beside or rank not in pattern.servers]
    for step in range(STEPS):
        done = {rank: pattern.actions(rank, step) for rank in workers}
        sent = {(rank, a.target) for rank in workers for a in done[rank] if isinstance(a, Send)}
        received = {(a.source, rank) for rank in workers for a in done[rank] if isinstance(a, Receive)}
        assert sent == received
        meeting = {tuple(a for a in actions if isinstance(a, Meet)) for actions in done.values()}
        assert len(meeting) == 1  # all ranks or none
        for rank in workers:
            for action in done[rank]:
                if isinstance(action, Ask):
                    assert action.server in pattern.servers
                if isinstance(action, Post):
                    assert set(action.targets) <= set(range(p)) - {rank}


@pytest.mark.parametrize("graph", graphs.GRAPHS)
def test_messages_of_gossip_are_the_links_of_the_graph(graph):
    p, mixing = 6, graphs.Mixing(graph, 6)
    pattern = train.PushSum(graph).pattern(p)
    for step in range(STEPS):
        matrix = mixing.matrices[step % len(mixing.matrices)]
        links = {(r, a.target) for r in range(p) for a in pattern.actions(r, step) if isinstance(a, Send)}
        assert links == {(j, i) for i in range(p) for j in range(p) if i != j and matrix[i, j] > 0}


def test_pairs_of_ad_psgd_exchange_both_ways():
    p = 6
    pattern = train.ADPSGD("complete", seed=3).pattern(p)
    for step in range(STEPS):
        links = {(r, t) for r in range(p) for a in pattern.actions(r, step) for t in a.targets}
        assert links == {(t, r) for r, t in links}
        assert links


def test_a_graph_that_a_strategy_refuses():
    with pytest.raises(ValueError, match="not doubly stochastic"):
        train.NeighborAveraging(graphs.random(directed=True)).pattern(5)


def expected_bytes(text, p, steps, size):
    """The bytes of parameters and gradients that each rank hands over in its steps by its pattern."""
    pattern = Choice.parse(text).pattern(p)
    sent = [0.0] * p
    for rank in pattern.workers(p):
        for step in range(steps):
            for action in pattern.actions(rank, step):
                if isinstance(action, Receive):
                    continue
                sent[rank] += size * action.share * (len(action.targets) if isinstance(action, Post) else 1)
                if isinstance(action, Ask):
                    sent[action.server] += size * action.share
    return sent


@pytest.mark.long
def test_strategies_send_what_their_patterns_say(tmp_path):
    """A job of 4 ranks trains with each strategy, without and with momentum's arrays; `train --json` counts bytes."""
    file = tmp_path / "found.json"
    choices = [text for text in CHOICES if "beside" not in text]
    done = mpiexec("openmpi", 4, "tests/train/programs/every_strategy.py", str(file), *choices, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for text, found in json.loads(file.read_text()).items():
        steps, size = found["steps"], found["parameters"]
        wanted = expected_bytes(text, 4, steps, size)
        workers = Choice.parse(text).pattern(4).workers(4)
        for rank, (sent, least) in enumerate(zip(found["sent"], wanted, strict=True)):
            # As many messages as the clocks allow; or a broadcast, which counts once.
            if text.startswith(("ad_psgd", "peer_async")) or "master" in text:
                assert sent <= 1.05 * least + 4 * size, (text, rank)
            else:
                more = 4 if rank in workers else 4 * len(workers)  # broadcast before, mean at the end of an epoch
                assert least <= sent <= 1.05 * least + more * size, (text, rank)
