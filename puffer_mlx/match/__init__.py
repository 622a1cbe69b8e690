"""Policies against each other: players, games of two, intervals and Elo ratings of the results.

`players.py` has those that can play; `games.play_pair` has two of them play in an environment of
two agents, `standings.py` makes intervals and Elo ratings of the results.
"""
