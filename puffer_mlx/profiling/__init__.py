"""Where time goes: phases of an epoch, timelines, Metal captures."""
