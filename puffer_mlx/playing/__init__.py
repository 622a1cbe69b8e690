"""Policies that act: alone, against each other, for a camera.

`episodes.py` plays whole episodes and scores them; `evaluation.py` has a trainer's weights play
them. `players.py` has those that can play a game, `games.play_pair` has two of them play, each for
half of an environment's agents, `matches.py` several pairs; `results.py` counts, and tells
intervals and Elo ratings; `ladder.py` has opponents of known strength. `frames.py` makes pictures
and films of agents, `episode_videos.py` those of a run; `terminal_video.py` shows them in a
terminal.
"""
