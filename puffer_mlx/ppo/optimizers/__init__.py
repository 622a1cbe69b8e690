"""How weights move: one file for each optimizer."""
