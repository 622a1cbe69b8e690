"""A minibatch's new values and ratios, written into their segments' columns."""
