"""Memory alone: recurrence, convolution and self-attention on tasks that need nothing else.

    from regard.comparison import memory

    results = memory.run("copy", lengths=(5, 20), seeds=1)
    print("\\n".join(memory.lines(results)))

`tasks` makes the sequences, `ways` the models, `training` teaches one model one task, `running` all of them, `report`
shows what came of it, and `published` has the figures of the literature to set beside it.
"""

from regard.comparison.memory.report import lines, picture, table
from regard.comparison.memory.running import DEFAULT_WAYS, LONG, QUICK, run
from regard.comparison.memory.training import Budget, Result, learn

__all__ = ["DEFAULT_WAYS", "LONG", "QUICK", "Budget", "Result", "learn", "lines", "picture", "run", "table"]
