"""Self-play: who sits where, what games against opponents came to, and who the opponents are."""
