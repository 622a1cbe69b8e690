"""MinGRU, upstream's native network: a linear recurrence whose gates don't see the state."""

NAME = "MinGRU"
