"""`python -m mlxd.engines.sharded PID`: a rank of the model whose rank 0 is this process, or 0 for another host's."""

import sys

from mlxd.engines.sharded.follower import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
