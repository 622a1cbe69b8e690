"""What a run tells of itself, epoch by epoch: lines of JSON, trackers, the score people read."""
