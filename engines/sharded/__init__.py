"""One model on several ranks: rank 0 decides, in a worker process, and the others follow.

Nobody waits for a collective that another does not enter: before rank 0 touches its batch it tells every other rank
what it is going to do, in order, and they do the same and nothing else.
"""
