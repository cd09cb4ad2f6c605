import pytest

from collectives.rl.apex.places import Places


@pytest.mark.parametrize(("size", "shards"), [(3, 1), (8, 1), (5, 2), (9, 3)])
def test_every_rank_has_one_place(size, shards):
    places = Places(size, shards)
    places.check()
    ranks = [0, *map(places.rank_of_shard, range(shards)), *map(places.rank_of_actor, range(places.actors))]
    assert ranks == list(range(size))
    assert sorted(actor for shard in range(shards) for actor in places.actors_of(shard)) == list(range(places.actors))
    assert all(places.shard_of(actor) == shard for shard in range(shards) for actor in places.actors_of(shard))
    assert min(len(places.actors_of(shard)) for shard in range(shards)) >= 1
