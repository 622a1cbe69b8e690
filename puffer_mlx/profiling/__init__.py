"""Where time goes: phases of an epoch, timelines, captures of Metal, what a device costs."""
