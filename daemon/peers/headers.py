"""Headers that daemons send each other."""

HOPS = "X-Mlxd-Hops"
"""On a request that a daemon has passed on: who gets it answers it himself, so that none goes round in circles."""

INSTANCE = "X-Mlxd-Instance"
"""On the list of models that a daemon gives another one: which process it is."""

PEER = "X-Mlxd-Peer"
"""On an answer: the peer that made it."""
