"""Measure time: phases of an epoch, timelines, Metal captures."""
