"""Where the ranks of the peers run."""

import os


def bind(rank, ranks):
    """Gives a rank of this machine its even share of the processors, as `trireme run` does."""
    cpus = sorted(os.sched_getaffinity(0))
    if ranks <= len(cpus):
        base, larger = divmod(len(cpus), ranks)
        begin = base * rank + min(rank, larger)
        os.sched_setaffinity(0, set(cpus[begin : begin + base + (rank < larger)]))
