"""The backward recursion of advantages."""
