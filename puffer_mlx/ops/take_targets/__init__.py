"""A gather of what a minibatch's segments are compared with."""
