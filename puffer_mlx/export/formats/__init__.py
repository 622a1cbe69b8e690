"""Every kind of file that policies are exported to and imported from."""
