"""Ape-X (Horgan et al. 2018): actors, shards of a prioritised replay, and a learner, which exchange messages.

`places`: which rank does what. `learner_side`, `shard_side` and
`actor_side`: what each rank does, at its own pace or in lockstep. `player`: all of it, as one rank sees it.
"""
