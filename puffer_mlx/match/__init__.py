"""Policies against each other: players, games of two sides, intervals and Elo ratings.

`players.py` has those that can play; `games.play_pair` has two of them play, each for half of an
environment's agents; `playing.py` has several pairs play; `tally.py` counts, and tells intervals;
`standings.py` makes Elo ratings.
"""
